// Fusion: nodes that run over one shape become one kernel.
//
// Before: any graph. After: clusters of elementwise ops, and reductions of one tensor, are `fusion` nodes, as are
// contractions and averages with their epilogues (epilogue.h, first of all: they take what saves a tensor); every value
// that someone outside reads is a result. One algorithm for all, by trait: a cluster has one iteration shape, and takes
// in whoever runs over that shape and shares data with it. First every elementwise op joins those who read it, last
// nodes first (the heroes' prologues); then each hero (reductions, otherwise elementwise ops) takes in, first nodes
// first, readers of what it makes (its epilogue) and readers of what it reads (siblings: the operand is then read
// once). Broadcasts, constants and casts of a 16-bit float to f32 are copied into each body, so an operand that is
// repeated stays small in memory and one of 16 bits is loaded as such.
//
// Legal: no path leaves a cluster and comes back, so a reduction is read inside its own body only where it is one over
// short rows and what reads it runs over the same rows, of which a kernel holds one at a time (as in a softmax); then
// all reductions of the body are over those rows. Data movement,
// random draws, views and group_finish stay outside at first, as do a contraction's own operands.
// Dtypes and rounding: no cast is added, removed or moved; each op keeps its operands, so pointwise results keep every
// bit and a reduction keeps its meaning (its order of summation is the kernel's own).
// At last, what leaves only sums over pixels of a contraction's values is computed in its kernel (sums.h), and a tensor
// that is put together of others is made by the loop that reads it (movement.h), as is what finishes a few partial
// results of an image (preamble.h). Where the device's kernels can, contractions compute the image that they read
// (prologue.h), because that depends on which kernels would make it; then the statistics of large images that are still
// stored are finished in their readers (preamble.h), and what is drawn is so by the first loop that reads it
// (movement.h).
// Cost: growing always saves the bytes of a read; what is recomputed instead of saved is in recompute.h.
// Deterministic: heroes and candidates are tried in node order. Each fusion spends fuel, as does each recomputed value.
#pragma once

#include "passes/fusion/choices.h"
#include "passes/fusion/report.h"
#include "passes/pass.h"

namespace difuse::passes {

/// `report` may be nullptr.
PassResult fuse_clusters(const ir::Graph& graph, PassContext& context, FusionReport* report = nullptr,
                         const FusionSettings& settings = {});

}  // namespace difuse::passes
