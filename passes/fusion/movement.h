// Movement and random draws beside what is computed: a tensor that is put together from others, or drawn, is made by
// the kernel that reads it, or by the one that makes what it is put together from.
//
// Before: units as they will be emitted. After: a concatenation or an upsampled image that a loop over its shape reads
// element by element is part of that loop's unit: each element is read where it comes from, and written besides where
// others need the whole. The loop need not wait for a copy, nor read it. So is a random draw part of the first loop
// that reads it, where that loop is pointwise. And what only a concatenation reads, all of it made by one pointwise
// loop, is made in its place there.
//
// Legal: nothing else that the loop needs comes from the moved tensor. On a GPU alone, whose loops compute an element's
// place; of the ops that move, those that leave neighbouring elements neighbours. No bit changes.
#pragma once

#include "passes/fusion/report.h"
#include "passes/fusion/units.h"
#include "passes/pass.h"

namespace difuse::passes {

/// Each unit that joins spends fuel. `units` stay up to date.
void join_movement(Units& units, PassContext& context, FusionReport& report);
/// Draws into who reads them, concatenations into who makes their operands: last, because nothing with such a body is
/// given a preamble or is a prologue.
void join_draws_and_concatenations(Units& units, PassContext& context, FusionReport& report);

}  // namespace difuse::passes
