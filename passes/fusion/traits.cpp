#include "passes/fusion/traits.h"

#include <array>

#include "ir/op.h"

namespace difuse::passes {

bool is_pointwise(const ir::Node& node) { return ir::has_trait(node, ir::kElementwise); }

bool is_reduction(const ir::Node& node) {
  return ir::has_trait(node, ir::kReduction) && ir::info(node.op).most_operands == 1;
}

bool is_free(const ir::Node& node) { return ir::has_trait(node, ir::kBroadcast) || node.op == ir::Op::constant; }

const ir::Shape& iteration_shape(const ir::Graph& graph, const ir::Node& node) {
  return is_reduction(node) ? graph.type(node.operands[0]).shape : node.types[0].shape;
}

std::span<const HeroRule> hero_rules() {
  static constexpr std::array<HeroRule, 2> kRules = {{
      {ir::Hero::reduction, is_reduction},
      {ir::Hero::pointwise, is_pointwise},
  }};
  return kRules;
}

}  // namespace difuse::passes
