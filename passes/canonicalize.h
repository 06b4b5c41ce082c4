// Brings a graph to one simple form, so that what follows meets each thing in one guise.
//
// Before: any graph. After: the rules of canonicalize.cpp no longer fit; equal nodes are one and dead nodes are gone.
// Idempotent. Legal for finite numbers whose sums stay finite; a rule that would change what a NaN or an infinity
// becomes (x * 0 -> 0) is not here. Only the sign of a zero may change (x + 0 -> x, where x is -0).
//
// Rounding: constants are folded in double and rounded to f32 once, where they are used, so a folded constant is at
// most one rounding away from what it replaces, towards the exact value. Sums that move out of a broadcast or past a
// factor (reduce_sum(a * broadcast(s)) -> reduce_sum(a) * s) round in another order. Everything else keeps every bit.
// No cast is added; a cast goes only where the one before it lost nothing.
#pragma once

#include <span>

#include "passes/pass.h"
#include "passes/rewrite.h"

namespace difuse::passes {

PassResult canonicalize(const ir::Graph& graph, PassContext& context);

/// The rules, for the tests.
std::vector<Rule> canonicalize_rules();
/// One table per family, in the file of that name.
std::span<const Rule> arithmetic_rules();
std::span<const Rule> shape_rules();
std::span<const Rule> reduction_rules();
std::span<const Rule> row_rules();
std::span<const Rule> convolution_rules();

}  // namespace difuse::passes
