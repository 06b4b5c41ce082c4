// Sums over an image's pixels: computed in the kernel of the contraction whose values they are made of.
//
// Before: units as they will be emitted, what is recomputed included. After: a unit that leaves nothing but sums over
// pixels (each channel's, of each image or of all: a bias's gradient, those of a norm), and reads what a contraction's
// unit makes, is part of that unit. Its values need not be read again; what they are combined with on the way (the
// norm's input, say) is read there instead.
//
// Legal: nothing else that the sums need comes from the contraction. Elementwise ops and rounding stay as they are; a
// kernel computes such sums strip by strip (ir/strips.h), in an order that its tiles do not change. On a GPU an average
// is a loop like any other, which takes its result's statistics in as well.
#pragma once

#include "passes/fusion/report.h"
#include "passes/fusion/units.h"
#include "passes/pass.h"

namespace difuse::passes {

/// Each unit that joins spends fuel. `units` stay up to date.
void join_sums(Units& units, PassContext& context, FusionReport& report);

}  // namespace difuse::passes
