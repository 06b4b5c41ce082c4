// Prologues: what a contraction reads as its image is computed on the way in, not stored before.
//
// Before: units as they will be emitted. After: an image that elementwise ops make (a normalise, scale, shift and
// SiLU, rounded; a norm's gradient), perhaps of a concatenation, and that contractions alone read, is computed by each
// of them: their bodies hold those ops, and read what the image is made of, one tensor of its size or two (or a
// concatenation's parts) and small ones that are repeated over it. Nobody needs the image itself then: it is neither
// written nor read, nor does its loop exist where it makes nothing else. Where only some of the readers can, a loop
// that reads what the image is made of anyway (the norm's gradient) makes it for the others (the filter's gradient),
// which come after it. What finishes an image's statistics comes along where the device's kernels take it, out of its
// loop or out of a kernel of its own. Where others read them too (the norm's gradient), or the kernels do not in all
// of the readers (on Hopper a filter's gradient does not), one that comes first finishes them for all: it stores what
// the others read. Else that stays a kernel of its own. So are sums over groups of channels finished that the image is
// made of, and sums over the image added (a bias's gradient): the loop is spared only where one of the readers makes
// all of them. A concatenation is read from its parts by loops, too.
//
// Legal: the device's kernels can (PrologueLimits, asked with the body), and nothing but a contraction's image or
// gradient operand, and sums over its pixels, reads what is computed. Only elementwise ops, movement that keeps
// neighbours and what is finished of partial results are taken in, so every bit stays; sums over the image have the
// order of the contraction's kernel.
//
// Cost: a kernel transforms an image again for each column of its tiles (cost.h), in each of the readers; that is less
// than the images' bytes that it spares take, or FusionChoices say yes. Both are of one image, so no batch changes what
// is expected, nor thereby a kernel; a launch less is not counted, for what it is worth depends on the batch. What a
// loop makes for others in a backward pass is no cost where it is made there anyway, for memory's sake
// (rematerialize.h). `always` takes in what saves bytes or a kernel whatever the price.
#pragma once

#include "passes/fusion/choices.h"
#include "passes/fusion/report.h"
#include "passes/fusion/units.h"
#include "passes/pass.h"

namespace difuse::passes {

/// Each image that is taken in spends fuel. `units` stay up to date.
void join_prologues(Units& units, PassContext& context, const FusionSettings& settings, FusionReport& report);

}  // namespace difuse::passes
