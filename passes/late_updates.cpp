#include "passes/late_updates.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <string>

#include "ir/op.h"

namespace difuse::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Value;

/// By value: the states whose next value it is.
std::set<std::string> replaced_by(const Graph& graph, Value v) {
  std::set<std::string> states;
  for (const ir::NamedValue& update : graph.updates()) {
    if (update.value == v) states.insert(update.name);
  }
  return states;
}

class LateUpdates {
 public:
  explicit LateUpdates(const Graph& graph) : graph_(graph), last_read_(static_cast<size_t>(graph.size()), -1) {
    const std::vector<bool> live = graph.live();
    for (int id = 0; id < graph.size(); ++id) {
      if (!live[static_cast<size_t>(id)]) continue;
      for (const Value v : graph.node(id).operands)
        last_read_[static_cast<size_t>(leaf_of(v))] = id, is_read_.insert(v);
    }
    for (const ir::NamedValue& output : graph.outputs()) is_read_.insert(output.value);
  }

  bool comes_late(int id) const {
    const Node& node = graph_.node(id);
    if (ir::has_trait(node, ir::kLeaf) || ir::moves_nothing(node)) return false;
    std::set<std::string> replaced;
    for (int r = 0; r < static_cast<int>(node.types.size()); ++r) {
      const std::set<std::string> states = replaced_by(graph_, {id, r});
      if (states.empty() || is_read_.contains({id, r})) return false;
      replaced.insert(states.begin(), states.end());
    }
    bool is_read_later = false;
    for (const Value v : node.operands) {
      const Node& leaf = graph_.node(leaf_of(v));
      if (!ir::has_trait(leaf, ir::kLeaf) || leaf.op == Op::input) return false;
      if (leaf.op != Op::state) continue;
      if (!replaced.contains(leaf.as<ir::LeafAttrs>().name)) return false;
      is_read_later = is_read_later || last_read_[static_cast<size_t>(leaf_of(v))] > id;
    }
    return is_read_later;
  }

 private:
  int leaf_of(Value v) const {
    while (ir::moves_nothing(graph_.node(v))) v = graph_.node(v).operands[0];
    return v.node;
  }

  const Graph& graph_;
  std::vector<int> last_read_;  // of a node's results, perhaps through what moves nothing
  std::set<Value> is_read_;
};

}  // namespace

PassResult update_late(const Graph& graph, PassContext& context) {
  const LateUpdates updates(graph);
  std::vector<int> order(static_cast<size_t>(graph.size()));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_partition(order, [&](int id) { return !updates.comes_late(id); });
  if (std::ranges::is_sorted(order) || !context.fuel.spend()) return {graph, false};
  return {ir::reordered(graph, order), true};
}

}  // namespace difuse::passes
