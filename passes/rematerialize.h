// Rematerialisation: what the backward pass can compute again is not kept for it.
//
// Before: a fused graph, in the order of its execution. After: some fusions have one more result, a value that an
// earlier fusion makes as well; who reads that value late reads the copy, and runs after it. The first one then dies
// with its early readers. A training step has many such values: a convolution's input (normalise, scale, shift, SiLU,
// rounded) is made of an image that the gradient of the norm reads anyway, and is kept for the filter's gradient alone.
//
// A value v with a gap between its readers is computed again in a host, of the hosts the one nearest to the first
// reader after the gap. A host
// - is a loop over v's shape that reads what v is made of: all but numbers for channels, which v repeats for pixels and
//   the host then reads too. Between those and v are elementwise ops and what is free alone, no more than cost.h says;
// - needs nothing of what the late readers make. They run after it, as soon as the rest of what they read is there;
//   everything else keeps its order.
// Rounding: none is added or moved; the copy has every bit of the value.
//
// Cost: a write of v, which its readers then find in L2, and no kernel. So it is done on a GPU alone, where memory is
// what a batch must fit in, and only as long as fewer bytes are alive where most of them are; among the values that are
// kept there the largest goes first. Bytes are those of one image: no batch changes a choice, nor thereby a kernel.
// Where no fewer are alive in the end, nothing is changed.
#pragma once

#include "passes/fusion/cost.h"
#include "passes/fusion/report.h"
#include "passes/pass.h"

namespace difuse::passes {

/// Bytes of one image that are alive at the node where most of them are, and of other tensors those of one row.
int64_t peak_image_bytes(const ir::Graph& graph);

/// Bytes of one image.
struct LeastBytes {
  int64_t kept = kLeastKeptBytes;     ///< Where no more is alive at any node, all is kept.
  int64_t tensor = kLeastImageBytes;  ///< A smaller tensor is kept.
};

/// Each value that is computed again spends fuel. `report` may be nullptr; its lines number the fused graph's nodes.
PassResult rematerialize(const ir::Graph& graph, PassContext& context, FusionReport* report = nullptr,
                         const LeastBytes& least = {});

}  // namespace difuse::passes
