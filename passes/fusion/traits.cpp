#include "passes/fusion/traits.h"

#include <algorithm>
#include <array>

#include "ir/op.h"
#include "passes/fusion/cost.h"

namespace difuse::passes {
namespace {

bool is_convolution(const ir::Node& node) {
  return node.op == ir::Op::conv_fprop || node.op == ir::Op::conv_dgrad || node.op == ir::Op::conv_wgrad;
}
bool is_attention(const ir::Node& node) { return node.op == ir::Op::attention || node.op == ir::Op::attention_grad; }
bool is_matmul(const ir::Node& node) { return node.op == ir::Op::matmul; }
/// Movement that computes.
bool is_average(const ir::Node& node) { return node.op == ir::Op::avg_pool; }
bool is_elementwise(const ir::Node& node) { return ir::has_trait(node, ir::kElementwise); }

}  // namespace

bool is_whole(const ir::Node& node) { return ir::has_trait(node, ir::kContraction) || is_average(node); }

std::vector<size_t> streamed_operands(const ir::Node& node) {
  if (node.op == ir::Op::conv_wgrad) return {0, 1};
  if (is_convolution(node) || is_matmul(node)) return {0};
  return {};
}

bool is_pointwise(const ir::Graph& graph, const ir::Node& node) {
  return is_elementwise(node) && !is_widening(graph, node);
}

bool has_contraction(const ir::Graph& body) {
  for (int id = 0; id < body.size(); ++id) {
    if (ir::has_trait(body.node(id), ir::kContraction)) return true;
  }
  return false;
}

bool is_reduction(const ir::Node& node) {
  return ir::has_trait(node, ir::kReduction) && ir::info(node.op).most_operands == 1;
}

bool is_of_strips(const ir::Node& node) { return node.op == ir::Op::channel_moments; }

bool sums_pixels(const ir::Graph& graph, const ir::Node& node) {
  if (node.op != ir::Op::reduce_sum || graph.type(node.operands[0]).shape.size() != 4) return false;
  const std::vector<int64_t>& axes = node.as<ir::ReduceAttrs>().axes;
  return axes == std::vector<int64_t>{1, 2} || axes == std::vector<int64_t>{0, 1, 2};
}

bool keeps_neighbours(const ir::Node& node) { return node.op == ir::Op::concat || node.op == ir::Op::upsample_nearest; }

bool is_loop(const ir::Graph& graph, const ir::Node& node) {
  if (node.op != ir::Op::fusion) return is_pointwise(graph, node) || is_reduction(node);
  const ir::Hero hero = node.as<ir::FusionAttrs>().hero;
  return hero == ir::Hero::pointwise || hero == ir::Hero::reduction;
}

bool is_widening(const ir::Graph& graph, const ir::Node& node) {
  if (node.op != ir::Op::cast || node.types[0].dtype != ir::DType::f32) return false;
  const ir::DType from = graph.type(node.operands[0]).dtype;
  return ir::is_float(from) && from != ir::DType::f32;
}

bool is_free(const ir::Graph& graph, const ir::Node& node) {
  return ir::has_trait(node, ir::kBroadcast) || node.op == ir::Op::constant || is_widening(graph, node);
}

bool is_copied(const ir::Graph& graph, const ir::Node& reader, ir::Value v) {
  const ir::Node& node = graph.node(v);
  if (!is_whole(reader)) return is_free(graph, node);
  return is_average(reader) && is_widening(graph, node);
}

ir::Value before_widening(const ir::Graph& graph, ir::Value v) {
  return is_widening(graph, graph.node(v)) ? graph.node(v).operands[0] : v;
}

bool is_row_reduction(const ir::Graph& graph, const ir::Node& node) {
  if (node.op != ir::Op::reduce_sum && node.op != ir::Op::reduce_max) return false;
  const auto& axes = node.as<ir::ReduceAttrs>().axes;
  const ir::Shape& shape = graph.type(node.operands[0]).shape;
  const auto kept = static_cast<int64_t>(shape.size() - axes.size());
  return kept > 0 && axes.front() == kept &&
         ir::element_count(shape) <= kMostRowElements * ir::element_count(node.types[0].shape);
}

bool is_row_repeat(const ir::Graph& graph, const ir::Node& node) {
  if (node.op != ir::Op::broadcast) return false;
  const ir::Node& from = graph.node(node.operands[0]);
  const auto& attrs = node.as<ir::BroadcastAttrs>();
  // Dimensions increase: as many as the reduction keeps, and the last is the last that it keeps.
  return is_row_reduction(graph, from) && attrs.shape == graph.type(from.operands[0]).shape &&
         attrs.dims.back() == std::ssize(attrs.dims) - 1;
}

ir::Value source_of(const ir::Graph& graph, ir::Value v) {
  const ir::Node& node = graph.node(v);
  return is_widening(graph, node) || is_row_repeat(graph, node) ? node.operands[0] : v;
}

bool reads(const ir::Graph& graph, int id, ir::Value v) {
  return std::ranges::any_of(graph.node(id).operands,
                             [&](ir::Value operand) { return before_widening(graph, operand) == v; });
}

const ir::Shape& iteration_shape(const ir::Graph& graph, const ir::Node& node) {
  return is_reduction(node) ? graph.type(node.operands[0]).shape : node.types[0].shape;
}

std::span<const HeroRule> hero_rules() {
  static constexpr std::array<HeroRule, 6> kRules = {{
      {ir::Hero::conv, is_convolution, true},
      {ir::Hero::matmul, is_matmul, true},
      {ir::Hero::attention, is_attention, true},
      {ir::Hero::pointwise, is_average, true},
      {ir::Hero::reduction, is_reduction, false},
      {ir::Hero::pointwise, is_elementwise, false},
  }};
  return kRules;
}

ir::Hero hero_of(const ir::Graph& graph, std::span<const int> nodes) {
  for (const HeroRule& rule : hero_rules()) {
    if (std::ranges::any_of(nodes, [&](int id) { return rule.is_hero(graph.node(id)); })) return rule.hero;
  }
  return ir::Hero::pointwise;
}

}  // namespace difuse::passes
