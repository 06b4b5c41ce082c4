// Makes the next value of a state where nobody reads the state any more, so that it is made in the state's place.
//
// Before: a graph, fused or not. After: the same nodes; those that come late stand behind all others and keep their
// order among themselves.
// Late comes what reads nothing but states that it replaces, constants and literals, and makes nothing but next values
// of states, where somebody reads one of those states after it: a step counter that is counted before the optimizer
// reads it. Where it stood it would need bytes of its own and a copy at the end of the step.
//
// Legal always: nodes are pure, and nobody reads what moves. Rounding: none. Fuel: one, where there is something to
// move.
#pragma once

#include "passes/pass.h"

namespace difuse::passes {

PassResult update_late(const ir::Graph& graph, PassContext& context);

}  // namespace difuse::passes
