// Epilogues: what reads the result of a contraction (or of an average) element by element is computed in its kernel.
//
// Before: each node a unit of its own. After: units of a whole hero and its epilogue. In node order each hero takes in
// readers of what its unit makes, over the shape of its result, as long as that moves fewer bytes:
// - a bias, a residual, a cast whose operand nobody else reads: the result is stored instead of the operand;
// - what is stored however the graph is fused (a contraction reads it, say), when it is made of the unit's values
//   alone: the operand need not be read again. It is one more result;
// - the next norm's statistics, which are parts of an image's strips (channel_moments), of a contraction's values: the
//   values need not be read again for them.
// But not, on a GPU, the sum of many small products: each would wait for the one before, where they are one launch.
// Everything else that a reader needs must be in memory anyway or free: an epilogue makes none of its operands. So of
// two contractions that are added the later one takes the sum, and no node is in two bodies.
//
// Not yet: reductions of more than a strip. What is computed on an operand's way in is in prologue.h.
#pragma once

#include <vector>

#include "ir/device_spec.h"
#include "passes/fusion/partition.h"
#include "passes/fusion/report.h"

namespace difuse::passes {

/// For each unit whether it has a whole hero. Such units are complete.
std::vector<bool> grow_epilogues(const ir::Graph& graph, const ir::DeviceSpec& device, Partition& partition,
                                 FusionReport& report);

}  // namespace difuse::passes
