#include "passes/hoist.h"

#include <algorithm>
#include <numeric>

#include "ir/op.h"

namespace difuse::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Value;

bool computes(const Node& node) { return !ir::has_trait(node, ir::kLeaf) && !ir::moves_nothing(node); }

bool is_replaced(const Graph& graph, const Node& state) {
  return state.op == Op::state &&
         std::ranges::count(graph.updates(), state.as<ir::LeafAttrs>().name, &ir::NamedValue::name) > 0;
}

/// What a node makes is worth its place for good: a filter with padded channels or summed phases may be several times
/// as large as the filter, and what is small takes no room that matters.
bool is_worth_keeping(const Graph& graph, const Node& node) {
  constexpr int64_t kMostGrowth = 4, kSmall = int64_t{1} << 16;
  int64_t read = 0, made = 0;
  for (const Value v : node.operands) read += graph.type(v).bytes();
  for (const ir::Type& type : node.types) made += type.bytes();
  return made <= std::max(kSmall, kMostGrowth * read);
}

}  // namespace

std::vector<bool> invariant_nodes(const Graph& graph) {
  std::vector<bool> invariant(static_cast<size_t>(graph.size()), false);
  // What is carried is made before the first step alone, but each step puts the next value in its place.
  const auto is_invariant = [&](Value v) {
    return invariant[static_cast<size_t>(v.node)] && graph.node(v).op != Op::carry;
  };
  for (int id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    if (ir::has_trait(node, ir::kLeaf)) {
      invariant[static_cast<size_t>(id)] = node.op != Op::input && !is_replaced(graph, node);
    } else if (node.op == Op::carry) {
      invariant[static_cast<size_t>(id)] = true;
    } else {
      invariant[static_cast<size_t>(id)] = std::ranges::all_of(node.operands, is_invariant) &&
                                           (ir::moves_nothing(node) || is_worth_keeping(graph, node));
    }
  }
  return invariant;
}

int invariant_prefix(const Graph& graph) {
  const std::vector<bool> invariant = invariant_nodes(graph), live = graph.live();
  int end = 0;
  for (int id = 0; id < graph.size(); ++id) {
    if (!live[static_cast<size_t>(id)] || !computes(graph.node(id))) continue;
    if (!invariant[static_cast<size_t>(id)]) break;
    end = id + 1;
  }
  return end;
}

PassResult hoist_invariant(const Graph& graph, PassContext& context) {
  const std::vector<bool> invariant = invariant_nodes(graph), live = graph.live();
  const auto comes_late = [&](int id) {
    return invariant[static_cast<size_t>(id)] && live[static_cast<size_t>(id)] && computes(graph.node(id));
  };
  std::vector<int> order(static_cast<size_t>(graph.size()));
  std::iota(order.begin(), order.end(), 0);
  if (std::ranges::none_of(order.begin() + invariant_prefix(graph), order.end(), comes_late)) return {graph, false};
  if (!context.fuel.spend()) return {graph, false};

  // Leaves too: what a graph is a function of stands at its beginning.
  std::ranges::stable_partition(
      order, [&](int id) { return invariant[static_cast<size_t>(id)] || ir::has_trait(graph.node(id), ir::kLeaf); });
  return {ir::reordered(graph, order), true};
}

}  // namespace difuse::passes
