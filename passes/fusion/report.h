// What the grower did and did not do, for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace difuse::passes {

struct FusionReport {
  /// One line each: "fused ...", "recomputed ...", "refused ...", in the order of the decisions. Node numbers are those
  /// of the graph before fusion.
  std::vector<std::string> lines;
};

/// What one kernel computes, and what it moves beside kernels for each op.
struct KernelContent {
  std::string ops;          ///< "conv2d, add x2, cast": in the order of first use, without what is free.
  int64_t bytes = 0;        ///< Operands read once and results written once.
  int64_t bytes_apart = 0;  ///< The same, summed over the ops, were each a kernel of its own.
};
/// Of a node of a fused graph; a node that is no fusion is its one op.
KernelContent content_of(const ir::Graph& graph, const ir::Node& node);

}  // namespace difuse::passes
