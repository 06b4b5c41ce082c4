// Cheap values are computed again where they are read instead of being written and read back.
//
// Before: units. After: some bodies hold elementwise nodes of other units. A value v is recomputed in its readers when
// that moves fewer bytes: each reader then reads what v is made of (which it may read anyway) in v's place, and when
// no reader of v is left, v is not written either. GroupNorm's normalise + SiLU in the backward pass is the case that
// matters: it is made of the image and three small tensors, all of which the backward reads, so the forward saves
// nothing. Where less is read so, a narrower value between is stored, and v is computed of that: dropout's mask is kept
// as the bytes that the model casts it to, not as the numbers that were drawn. Only elementwise nodes are recomputed,
// over the reader's own shape or, on a GPU, over the smaller one of what it repeats (a norm's scale per image and
// channel: a kernel less); there slices are read where they lie as well. So every bit stays.
#pragma once

#include "passes/fusion/report.h"
#include "passes/fusion/units.h"
#include "passes/pass.h"

namespace difuse::passes {

/// Each value that is recomputed spends fuel. Leaves find_needed() up to date.
void recompute_cheap_values(Units& units, PassContext& context, FusionReport& report);

}  // namespace difuse::passes
