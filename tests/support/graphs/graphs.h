// Graphs that several pass tests share, and what they compare with.
#pragma once

#include <string>

#include "ir/builder.h"
#include "ir/reference.h"

namespace difuse::tests {

/// A residual block's first half with its loss and gradients: conv + bias, GroupNorm + SiLU, conv, mean square.
/// Inputs "image" and the parameters; outputs "loss" and one gradient per parameter.
ir::Graph norm_block(int64_t batch, int64_t height, int64_t width, int64_t channels, int64_t groups);

/// `depth` times SiLU of scaled channels and a 3x3 convolution of an 8x8 image, mean square and gradients: whatever a
/// convolution reads can be computed again from what the gradient reads. Inputs "image", "scale<i>", "filter<i>";
/// outputs "loss", "dscale<i>", "dfilter<i>".
ir::Graph scaled_convolutions(int64_t batch, int depth, int64_t channels);

/// One AdamW step over a flat vector, with a clipped norm: states "p", "m", "v", "ema"; input "g"; output "norm".
ir::Graph adam(int64_t size);

/// Values between -1 and 1 for every input (or state), of the dtype's precision where that is below f32; integers from
/// 0 to 3.
ir::TensorMap random_values(const ir::Graph& graph, ir::Op leaf, uint64_t seed);

/// Expects that both graphs, run by the reference on the same random values, give the same outputs and states within
/// `tolerance` (ir::relative_error).
void expect_same_results(const ir::Graph& a, const ir::Graph& b, double tolerance = 1e-12);

/// Nodes that are neither leaves nor views: what a backend would launch.
int kernel_count(const ir::Graph& graph);

}  // namespace difuse::tests
