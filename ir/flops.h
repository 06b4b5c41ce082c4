// How much arithmetic a graph is.
#pragma once

#include "ir/graph.h"

namespace difuse::ir {

/// Floating-point operations of a contraction (convolution, matrix product, attention), or of those in a fusion; a
/// multiplication and an addition count as two. 0 for other ops.
int64_t node_flops(const Graph& graph, const Node& node);
/// Those of a graph's live nodes.
int64_t contraction_flops(const Graph& graph);

}  // namespace difuse::ir
