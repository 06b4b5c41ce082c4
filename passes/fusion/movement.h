// Movement on the way in: a tensor that is put together from others is made by the kernel that reads it.
//
// Before: units as they will be emitted. After: a concatenation or an upsampled image that a loop over its shape reads
// element by element is part of that loop's unit: each element is read where it comes from, and written besides where
// others need the whole. The loop need not wait for a copy, nor read it.
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

}  // namespace difuse::passes
