// Brings a graph to one simple form, so that what follows meets each thing in one guise.
//
// Before: any graph. After: the rules of canonicalize.cpp no longer fit; equal nodes are one and dead nodes are gone.
// Idempotent. Legal always: a rule that would change what a NaN or an infinity becomes (x * 0 -> 0) is not here.
// x + 0 turns -0 into +0 where the original would too, and keeps -0 where it would not.
//
// Rounding: constants are folded in double and rounded to f32 once, where they are used, so a folded constant is at
// most one rounding nearer to the exact value than what it replaces. Sums that move out of a broadcast or past a factor
// (reduce_sum(a * broadcast(s)) -> reduce_sum(a) * s) round in another order. Everything else keeps every bit. No cast
// is added; a cast goes only where the one before it lost nothing.
#pragma once

#include "passes/pass.h"

namespace difuse::passes {

PassResult canonicalize(const ir::Graph& graph, PassContext& context);

}  // namespace difuse::passes
