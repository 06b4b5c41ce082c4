// Who may be in a fusion, said by trait.
#pragma once

#include <span>

#include "ir/graph.h"

namespace difuse::passes {

/// A kind of node that a fusion grows from. Rows are tried in order: the first kind claims its neighbours first. A new
/// hero is a new row.
struct HeroRule {
  ir::Hero hero;
  bool (*is_hero)(const ir::Node& node);
};
std::span<const HeroRule> hero_rules();

/// Elementwise ops.
bool is_pointwise(const ir::Node& node);
/// Reductions of one tensor. What finishes several tensors' partial results (group_finish) is none.
bool is_reduction(const ir::Node& node);
/// Costs nothing to have in a body: a broadcast is an index, a constant a number. Each body gets its own copy.
bool is_free(const ir::Node& node);

/// The shape that the node's loop runs over: its own when elementwise, its operand's when a reduction.
const ir::Shape& iteration_shape(const ir::Graph& graph, const ir::Node& node);

}  // namespace difuse::passes
