#include "passes/fusion/units.h"

#include <algorithm>
#include <set>

#include "passes/fusion/traits.h"

namespace difuse::passes {

using ir::Node;
using ir::Value;

bool Unit::holds(int node) const { return std::ranges::binary_search(owned, node) || recomputed.contains(node); }

Units::Units(const ir::Graph& graph, const Partition& partition, const std::vector<bool>& may_fuse) : graph_(graph) {
  owner_.assign(static_cast<size_t>(graph.size()), -1);
  for (int id = 0; id < graph.size(); ++id) {
    const int p = partition.unit_of(id);
    const Node& node = graph.node(id);
    if (!partition.live(id)) continue;
    if (!may_fuse[static_cast<size_t>(p)] || !(is_pointwise(node) || is_reduction(node))) {
      add_unit({false, {}, {id}, {}});
    } else if (partition.members(p).front() == id) {
      add_unit({true, iteration_shape(graph, node), partition.members(p), {}});
    }
  }
  order_units();
}

void Units::add_unit(Unit unit) {
  for (int node : unit.owned) owner_[static_cast<size_t>(node)] = size();
  units_.push_back(std::move(unit));
}

void Units::order_units() {
  // Depth first over the operands; recursion would be as deep as the graph is long.
  std::vector<char> state(units_.size(), 0);
  for (int start = 0; start < size(); ++start) {
    std::vector<int> stack = {start};
    while (!stack.empty()) {
      const int u = stack.back();
      char& s = state[static_cast<size_t>(u)];
      if (s == 0) {
        s = 1;
        for (int node : unit(u).owned) {
          for (Value v : graph_.node(node).operands) {
            if (state[static_cast<size_t>(owner(v.node))] == 0) stack.push_back(owner(v.node));
          }
        }
        continue;
      }
      stack.pop_back();
      if (s == 1) order_.push_back(u);
      s = 2;
    }
  }
}

std::vector<int> Units::closure(int u, const std::vector<int>& roots) const {
  std::set<int> found(roots.begin(), roots.end());
  // Largest first: operands have smaller numbers, so each node is expanded once.
  for (auto it = found.rbegin(); it != found.rend(); ++it) {
    for (Value v : graph_.node(*it).operands) {
      if (unit(u).holds(v.node)) found.insert(v.node);
    }
  }
  return {found.begin(), found.end()};
}

std::vector<Value> Units::externals(const std::vector<int>& nodes) const {
  std::vector<Value> result;
  std::set<Value> seen;
  auto read = [&](auto& self, Value v) -> void {
    if (std::ranges::binary_search(nodes, v.node)) return;
    const Node& node = graph_.node(v);
    if (is_free(node)) {
      for (Value inner : node.operands) self(self, inner);
    } else if (seen.insert(v).second) {
      result.push_back(v);
    }
  };
  for (int id : nodes) {
    for (Value v : graph_.node(id).operands) read(read, v);
  }
  return result;
}

void Units::recompute(int u, const std::vector<int>& nodes) {
  Unit& to = units_[static_cast<size_t>(u)];
  for (int node : nodes) {
    if (!std::ranges::binary_search(to.owned, node)) to.recomputed.insert(node);
  }
}

void Units::find_needed() {
  readers_.clear();
  bodies_.assign(units_.size(), {});
  for (const auto* list : {&graph_.outputs(), &graph_.updates()}) {
    for (const ir::NamedValue& n : *list) readers_[n.value].others = true;
  }
  for (auto it = order_.rbegin(); it != order_.rend(); ++it) {
    const Unit& u = unit(*it);
    std::vector<int> roots;
    for (int node : u.owned) {
      for (int r = 0; r < static_cast<int>(graph_.node(node).types.size()); ++r) {
        if (needed({node, r}) && (roots.empty() || roots.back() != node)) roots.push_back(node);
      }
    }
    if (roots.empty()) continue;
    auto& body = bodies_[static_cast<size_t>(*it)];
    body = closure(*it, roots);
    if (!u.fusible) {
      for (Value v : graph_.node(body[0]).operands) readers_[v].others = true;
      continue;
    }
    std::set<Value> direct;
    for (int node : body) {
      for (Value v : graph_.node(node).operands) direct.insert(v);
    }
    std::set<Value> indirect;  // read by a free node of the body
    for (Value v : direct) {
      if (is_free(graph_.node(v))) {
        for (Value inner : graph_.node(v).operands) indirect.insert(inner);
      }
    }
    for (Value v : externals(body)) {
      Readers& r = readers_[v];
      if (direct.contains(v) && !indirect.contains(v)) {
        r.fusible.push_back(*it);
      } else {
        r.others = true;
      }
    }
  }
}

const Readers* Units::readers(Value v) const {
  const auto it = readers_.find(v);
  return it == readers_.end() ? nullptr : &it->second;
}

}  // namespace difuse::passes
