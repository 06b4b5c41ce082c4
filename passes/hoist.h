// Brings to the front what is the same in every step, so that not every step computes it.
//
// Before: a graph, fused or not. After: the same nodes, the invariant ones before all others; either keep their order
// among themselves.
// Invariant is a node of which every operand is a state that no step replaces, a constant, a literal or the result of
// an invariant node: what a sampler makes of the parameters, their rounding to bf16 for one; and what is carried
// (carry.h), but nothing that reads it. What is larger than all it
// is made of, by more than a filter that is laid out anew (a bias that is repeated for every pixel), is not invariant:
// it is cheaper to compute than to keep.
//
// Legal always: nodes are pure, and none moves past what it reads. Rounding: none. Fuel: one, where there is something
// to move.
#pragma once

#include <vector>

#include "passes/pass.h"

namespace difuse::passes {

PassResult hoist_invariant(const ir::Graph& graph, PassContext& context);

/// By node: whether it is invariant. Leaves are where their readers may be.
std::vector<bool> invariant_nodes(const ir::Graph& graph);

/// The first nodes of a graph that are invariant or move nothing (leaves, reshapes, views): their number, up to the
/// last invariant one that computes something.
int invariant_prefix(const ir::Graph& graph);

}  // namespace difuse::passes
