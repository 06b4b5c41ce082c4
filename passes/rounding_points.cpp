#include "passes/rounding_points.h"

#include <algorithm>

namespace difuse::passes {

using ir::Node;
using ir::Op;
using ir::Value;

namespace {

constexpr int64_t kLeastChannels = 8;  ///< Of an image; a pixel of it then fills 16 bytes of bf16.

/// Contractions that make an image for each image; conv_wgrad sums over them.
bool makes_images(const Node& node) {
  return ir::has_trait(node, ir::kContraction) && node.types[0].rank() >= 3 && node.op != Op::conv_wgrad;
}

bool widens(const ir::Graph& graph, const Node& node) {
  if (node.op != Op::cast || node.types[0].dtype != ir::DType::f32) return false;
  const ir::DType from = graph.type(node.operands[0]).dtype;
  return ir::is_float(from) && from != ir::DType::f32;
}

}  // namespace

std::vector<size_t> multiplied_operands(const Node& node) {
  if (!ir::has_trait(node, ir::kContraction)) return {};
  if (node.op == Op::attention_grad) return {0, 1, 3};  // Operand 2 is the log-sum-exp.
  std::vector<size_t> all(node.operands.size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  return all;
}

bool only_moves(const Node& node) {
  if (node.op == Op::avg_pool || node.op == Op::scatter_add) return false;  // They add.
  return ir::has_trait(node, ir::kMovement) || node.op == Op::reshape;
}

std::vector<Value> moved_operands(const Node& node) {
  if (node.op == Op::gather) return {node.operands[0]};
  return node.operands;
}

RoundingPoints::RoundingPoints(const ir::Graph& graph, bool whole_stream)
    : graph_(graph),
      users_(graph.users()),
      leaves_graph_(static_cast<size_t>(graph.size()), false),
      kinds_(static_cast<size_t>(graph.size())),
      rounded_(static_cast<size_t>(graph.size()), false) {
  const std::vector<bool> live = graph.live();
  for (auto& list : users_) std::erase_if(list, [&](int user) { return !live[static_cast<size_t>(user)]; });
  for (const auto* list : {&graph.outputs(), &graph.updates()}) {
    for (const ir::NamedValue& n : *list) leaves_graph_[static_cast<size_t>(n.value.node)] = true;
  }
  for (int id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    if (!live[static_cast<size_t>(id)]) continue;
    for (const size_t i : multiplied_operands(node)) mark_operand(node.operands[i]);
  }
  for (int id = 0; id < graph.size(); ++id) {
    if (live[static_cast<size_t>(id)]) kinds_[static_cast<size_t>(id)] = classify(id);
  }
  for (int id = 0; id < graph.size(); ++id) {
    const Kind& kind = kinds_[static_cast<size_t>(id)];
    rounded_[static_cast<size_t>(id)] = kind.operand || (whole_stream && kind.term && ends(id));
  }
}

bool RoundingPoints::is_image(Value v) const {
  const ir::Type& t = graph_.type(v);
  return v.result == 0 && t.dtype == ir::DType::f32 && t.rank() >= 3 && t.shape.back() >= kLeastChannels;
}

/// Marks the computed images that are moved to where a contraction reads them.
void RoundingPoints::mark_operand(Value v) {
  const Node& node = graph_.node(v);
  if (only_moves(node)) {
    for (const Value from : moved_operands(node)) mark_operand(from);
    return;
  }
  const bool computed = ir::has_trait(node, ir::kElementwise) || makes_images(node) || node.op == Op::avg_pool;
  if (computed && is_image(v) && !widens(graph_, node)) kinds_[static_cast<size_t>(v.node)].operand = true;
}

RoundingPoints::Kind RoundingPoints::classify(int id) const {
  const Node& node = graph_.node(id);
  Kind kind = kinds_[static_cast<size_t>(id)];
  kind.term = kind.operand;
  if (!is_image({id, 0})) return kind;
  const auto is_term = [&](Value v) { return v.result == 0 && this->kind(v).term; };
  if (makes_images(node)) {
    kind.term = true;
    kind.accumulates = id;
  } else if (widens(graph_, node)) {
    kind.term = true;
  } else if (node.op == Op::avg_pool || only_moves(node)) {
    kind.term = kind.term || std::ranges::all_of(moved_operands(node), is_term);
  } else if (node.op == Op::add && std::ranges::any_of(node.operands, is_term)) {
    kind.term = true;
    const Value a = node.operands[0], b = node.operands[1];
    if (continues(a, b)) kind.accumulates = this->kind(a).accumulates;
    if (continues(b, a)) kind.accumulates = this->kind(b).accumulates;
  }
  return kind;
}

/// Computed on a contraction's accumulators, and nowhere else wanted.
bool RoundingPoints::is_pending(Value v) const {
  const auto at = static_cast<size_t>(v.node);
  return v.result == 0 && kinds_[at].accumulates >= 0 && !kinds_[at].operand && users_[at].size() == 1 &&
         !leaves_graph_[at];
}

/// Whether `other` is added to what is pending on the accumulators.
bool RoundingPoints::continues(Value accumulator, Value other) const {
  if (!is_pending(accumulator) || accumulator == other) return false;
  const Node& node = graph_.node(other);
  if (ir::has_trait(node, ir::kBroadcast) || node.op == Op::constant) return true;
  if (other.result != 0 || !kind(other).term) return false;
  if (is_pending(other)) return kind(accumulator).accumulates > kind(other).accumulates;
  // A sum that goes on into this one is stored by nobody.
  const auto at = static_cast<size_t>(other.node);
  return node.op != Op::add || kinds_[at].operand || users_[at].size() > 1 || leaves_graph_[at];
}

/// Whether a term is complete: nothing is added to it before it is read for something else.
bool RoundingPoints::ends(int id) const {
  const Node& node = graph_.node(id);
  if (only_moves(node) || widens(graph_, node)) return false;
  const auto at = static_cast<size_t>(id);
  if (users_[at].empty()) return false;
  if (node.op == Op::avg_pool || users_[at].size() > 1 || leaves_graph_[at]) return true;
  const int reader = users_[at][0];
  if (graph_.node(reader).op != Op::add) return true;
  return kinds_[at].accumulates >= 0 && kinds_[static_cast<size_t>(reader)].accumulates != kinds_[at].accumulates;
}

}  // namespace difuse::passes
