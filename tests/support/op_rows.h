// One table of examples per op: the gradient check, the backend parity tests and the benchmarks all walk it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/reference.h"

namespace difuse::testing {

/// What the elements of an input look like.
enum class Fill {
  normal,    ///< N(0, 1)
  positive,  ///< uniform in [0.5, 2]
  index,     ///< integers in [0, 4)
  counter,   ///< integers in [0, 1000)
};

struct OpRow {
  ir::Op op;
  std::string name;                                 ///< "conv_fprop/3x3_stride2"
  ir::Graph graph;                                  ///< Inputs of any name; every output is compared.
  std::vector<std::pair<std::string, Fill>> fills;  ///< Inputs that are not `normal`.
  bool differentiable = true;                       ///< Whether the gradient check applies (smooth at random points).
  double tolerance = 1e-5;                          ///< Of an f32 backend against the reference.
};

/// The row's name as GoogleTest takes it: letters, digits and underscores.
std::string test_name(const OpRow& row);

/// At least one row for every op but `input` and `state`.
std::vector<OpRow> op_rows();

/// Deterministic values for every input of the row's graph, exact in f32.
ir::TensorMap random_inputs(const OpRow& row, uint64_t seed);
ir::TensorMap random_leaves(const ir::Graph& graph, ir::Op leaf, uint64_t seed,
                            const std::vector<std::pair<std::string, Fill>>& fills = {});

}  // namespace difuse::testing
