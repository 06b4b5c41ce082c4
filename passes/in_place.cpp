#include "passes/in_place.h"

#include <algorithm>
#include <charconv>

#include "ir/op.h"
#include "passes/fusion/traits.h"

namespace difuse::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Shape;
using ir::Value;

/// Whether the input is read for a reduction otherwise than through a result: where the reduction is not computed
/// beside the results, it is read again.
bool is_reduced(const Graph& body, int input) {
  std::vector<bool> carries(static_cast<size_t>(body.size()), false),
      is_result(static_cast<size_t>(body.size()), false);
  for (const ir::NamedValue& output : body.outputs()) is_result[static_cast<size_t>(output.value.node)] = true;
  carries[static_cast<size_t>(input)] = true;
  for (int id = input + 1; id < body.size(); ++id) {
    const Node& node = body.node(id);
    const bool reads =
        std::ranges::any_of(node.operands, [&](Value v) { return carries[static_cast<size_t>(v.node)]; });
    if (reads && ir::has_trait(node, ir::kReduction)) return true;
    carries[static_cast<size_t>(id)] = reads && !is_result[static_cast<size_t>(id)];
  }
  return false;
}

/// Whether a contraction of the body reads what is computed of the input: as a whole then, not element by element.
bool is_contracted(const Graph& body, int input) {
  std::vector<bool> carries(static_cast<size_t>(body.size()), false);
  carries[static_cast<size_t>(input)] = true;
  for (int id = input + 1; id < body.size(); ++id) {
    const Node& node = body.node(id);
    if (!std::ranges::any_of(node.operands, [&](Value v) { return carries[static_cast<size_t>(v.node)]; })) continue;
    if (ir::has_trait(node, ir::kContraction)) return true;
    carries[static_cast<size_t>(id)] = true;
  }
  return false;
}

bool one_pass(const Graph& body) {
  const bool is_epilogue = has_contraction(body);  // It has its values at hand, however often they are read.
  const Shape shape = iteration_shape(body);
  std::vector<bool> is_whole(static_cast<size_t>(body.size()), false);  // computed of what the loop runs over
  for (int id = 0; id < body.size(); ++id) {
    const Node& node = body.node(id);
    is_whole[static_cast<size_t>(id)] =
        std::ranges::any_of(node.types, [&](const ir::Type& type) { return type.shape == shape; }) ||
        std::ranges::any_of(node.operands, [&](Value v) { return is_whole[static_cast<size_t>(v.node)]; });
    // What is made of smaller tensors is there before the loop begins, and nothing is written in their place.
    if (!is_epilogue && !is_whole[static_cast<size_t>(id)]) continue;
    if (node.op == ir::Op::channel_moments && !is_epilogue) return false;
    constexpr auto kTraits =
        ir::Trait(ir::kElementwise | ir::kBroadcast | ir::kLeaf | ir::kRandom | ir::kReduction | ir::kContraction);
    // Of a tensor in memory: what is computed here would be read where another element is written.
    const bool is_part = node.op == ir::Op::slice && body.node(node.operands[0]).op == ir::Op::input;
    if (!ir::has_trait(node, kTraits) && !is_part) return false;
    for (Value v : node.operands) {
      const bool is_small = !is_epilogue && !is_whole[static_cast<size_t>(v.node)];
      if (ir::has_trait(body.node(v), ir::kReduction) && !is_small) return false;
    }
  }
  return true;
}

}  // namespace

Shape iteration_shape(const Graph& body) {
  Shape largest;
  const auto see = [&](const Shape& shape) {
    if (ir::element_count(shape) > ir::element_count(largest)) largest = shape;
  };
  for (int id = 0; id < body.size(); ++id) {
    const Node& node = body.node(id);
    if (ir::has_trait(node, ir::kContraction)) return node.types[0].shape;
    if (node.op == ir::Op::input) continue;
    for (const ir::Type& t : node.types) see(t.shape);
    if (node.op == ir::Op::slice) continue;
    for (const Value v : node.operands) see(body.type(v).shape);
  }
  return largest;
}

InPlace::InPlace(const Graph& graph, int id) : graph_(graph), node_(graph.node(id)) {
  operands_.assign(node_.operands.size(), false);
  results_.assign(node_.types.size(), false);
  if (ir::has_trait(node_, ir::kElementwise)) {
    operands_.assign(operands_.size(), true);
    results_.assign(results_.size(), true);
    return;
  }
  if (node_.op != ir::Op::fusion) return;
  const auto& attrs = node_.as<ir::FusionAttrs>();
  if (attrs.hero == ir::Hero::attention || !one_pass(*attrs.body)) return;
  const Graph& body = *attrs.body;
  const Shape shape = iteration_shape(body);
  const auto users = body.users();
  const bool is_epilogue = has_contraction(body);
  for (int input : body.leaves(ir::Op::input)) {
    const std::string& name = body.node(input).as<ir::LeafAttrs>().name;
    size_t operand = 0;
    std::from_chars(name.data(), name.data() + name.size(), operand);
    operands_[operand] = body.node(input).types[0].shape == shape &&
                         !(is_epilogue && (is_reduced(body, input) || is_contracted(body, input))) &&
                         std::ranges::none_of(users[static_cast<size_t>(input)], [&](int user) {
                           constexpr auto kWhole =
                               ir::Trait(ir::kBroadcast | ir::kContraction | ir::kMovement | ir::kRandom);
                           return ir::has_trait(body.node(user), kWhole);
                         });
  }
  for (size_t r = 0; r < results_.size(); ++r) results_[r] = node_.types[r].shape == shape;
}

bool InPlace::allows(int operand, int result) const {
  const auto o = static_cast<size_t>(operand), r = static_cast<size_t>(result);
  if (!operands_[o] || !results_[r]) return false;
  const ir::Type& from = graph_.type(node_.operands[o]);
  const ir::Type& to = node_.types[r];
  return from.shape == to.shape && ir::size_of(from.dtype) == ir::size_of(to.dtype);
}

}  // namespace difuse::passes
