// A node of a graph as a problem of its own: what every backend lowers.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace difuse::codegen {

/// A graph whose inputs "0", "1", ... are `operands` (values of the outer graph, each once) and whose outputs "0", "1",
/// ... are the node's results. A fusion's body, or the one op.
struct NodeBody {
  ir::Graph graph{"body"};
  std::vector<ir::Value> operands;
};
NodeBody node_body(const ir::Graph& graph, int id);

/// What `values` need of the graph, which are its outputs "0", "1", ...; inputs keep their names.
ir::Graph part_of(const ir::Graph& graph, const std::vector<ir::Value>& values);

/// What the node computes, without the batch: "conv_fprop_3x3_h28w28c32k32", "matmul_512x128", "add_28x28x32",
/// "reduction_sub_mul_reduce_sum_28x28x32", "mul".
std::string node_name(const ir::Graph& graph, int id);

/// Which operand an input of such a body stands for.
int input_number(const ir::Node& input);

}  // namespace difuse::codegen
