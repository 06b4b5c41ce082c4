// What the grower did and did not do, for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace difuse::passes {

/// An image that its readers could compute on the way in (prologue.h), to some gain or price.
struct PrologueSite {
  std::string site;        ///< As FusionChoices know it.
  int64_t batch = 0;       ///< Images.
  double spared = 0;       ///< Seconds by the cost model, as `price`: what need not be moved.
  double price = 0;        ///< What the readers take longer.
  bool computed = false;   ///< As it was decided.
  bool estimated = false;  ///< As the cost model alone decides.
};

struct FusionReport {
  /// One line each: "fused ...", "recomputed ...", "refused ...", in the order of the decisions. Node numbers are those
  /// of the graph before fusion.
  std::vector<std::string> lines;
  std::vector<PrologueSite> prologues = {};  ///< One for each image, in the order of the decisions.
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
