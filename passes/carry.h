// Rounds the next value of a state at a step's end, where it is at hand, and not the state at the next step's
// beginning.
//
// Before: a training step that reads its parameters, one f32 vector, rounded to bf16 (or to tf32), and replaces them.
// After: the rounded vector is carried from step to step (Op::carry) and has an update, the rounded next value, which
// fusion makes together with the next value itself: nobody reads the vector only to round it. What is carried comes
// from the state before the first step, and again where the state was written from outside (hoist.h).
// Small states stay as they are: who reads one rounds it on the way. So does what an output shows: it is read when the
// next value has taken its place.
//
// Legal always: rounding is a function of the element, so that the rounded next value is the next step's rounded value.
// Rounding: none. Fuel: one for each state and format.
#pragma once

#include "passes/pass.h"

namespace difuse::passes {

PassResult carry_rounded(const ir::Graph& graph, PassContext& context);

}  // namespace difuse::passes
