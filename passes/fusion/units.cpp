#include "passes/fusion/units.h"

#include <algorithm>
#include <iterator>
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
    if (!may_fuse[static_cast<size_t>(p)]) {
      add_unit({false, false, {}, id, {id}, {}});
    } else if (partition.members(p).front() == id) {
      const bool whole = std::ranges::any_of(partition.members(p), [&](int m) { return is_whole(graph.node(m)); });
      add_unit({true, whole, iteration_shape(graph, node), id, partition.members(p), {}});
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
            // What the body has its own copy of reads what the unit may make itself.
            const bool copied = unit(u).fusible && is_copied(graph_, graph_.node(node), v);
            const int made_by = owner((copied ? source_of(graph_, v) : v).node);
            if (state[static_cast<size_t>(made_by)] == 0) stack.push_back(made_by);
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

std::vector<int> Units::closure(int u, const std::vector<int>& roots, int without) const {
  std::set<int> found(roots.begin(), roots.end());
  // Largest first: operands have smaller numbers, so each node is expanded once.
  for (auto it = found.rbegin(); it != found.rend(); ++it) {
    for (Value v : graph_.node(*it).operands) {
      while (!unit(u).holds(v.node) && is_copied(graph_, graph_.node(*it), v) && !graph_.node(v).operands.empty()) {
        v = graph_.node(v).operands[0];
      }
      if (unit(u).holds(v.node) && v.node != without) found.insert(v.node);
    }
  }
  return {found.begin(), found.end()};
}

std::vector<Value> Units::externals(const std::vector<int>& nodes) const {
  std::vector<Value> result;
  std::set<Value> seen;
  auto read = [&](auto& self, const Node& reader, Value v) -> void {
    if (std::ranges::binary_search(nodes, v.node) || seen.contains(v)) return;
    if (is_copied(graph_, reader, v)) {
      for (Value inner : graph_.node(v).operands) self(self, graph_.node(v), inner);
    } else {
      seen.insert(v);
      result.push_back(v);
    }
  };
  for (int id : nodes) {
    for (Value v : graph_.node(id).operands) read(read, graph_.node(id), v);
  }
  return result;
}

void Units::recompute(int u, const std::vector<int>& nodes) {
  Unit& to = units_[static_cast<size_t>(u)];
  for (int node : nodes) {
    if (!std::ranges::binary_search(to.owned, node)) to.recomputed.insert(node);
  }
}

std::vector<Value> Units::reads(int u) const {
  if (unit(u).fusible || body(u).empty()) return externals(body(u));
  return graph_.node(body(u)[0]).operands;
}

std::set<int> Units::needs(int u, int without) const {
  std::set<int> found;
  std::vector<int> stack = {u};
  while (!stack.empty()) {
    const int now = stack.back();
    stack.pop_back();
    if (now == without || !found.insert(now).second) continue;
    for (const Value v : reads(now)) stack.push_back(owner(v.node));
  }
  return found;
}

int Units::between(int from, int to, const std::set<int>& but) const {
  for (const int u : needs(to, from)) {
    const auto is_made = [&](Value v) { return owner(v.node) == from; };
    if (u != to && !but.contains(u) && std::ranges::any_of(reads(u), is_made)) return u;
  }
  return -1;
}

void Units::absorb(int into, int unit) {
  const auto place = [&](int u) { return std::ranges::find(order_, u); };
  if (place(into) < place(unit)) {
    // What the unit needed comes before the whole now.
    const std::set<int> before = needs(unit, into);
    std::stable_partition(place(into), place(unit), [&](int u) { return before.contains(u); });
  } else {
    // Who else needed the unit comes after the whole.
    const auto stays = [&](int u) { return u == into || u == unit || !needs(u, -1).contains(unit); };
    std::stable_partition(place(unit), place(into) + 1, stays);
  }
  Unit &to = units_[static_cast<size_t>(into)], &from = units_[static_cast<size_t>(unit)];
  std::vector<int> owned;
  std::ranges::merge(to.owned, from.owned, std::back_inserter(owned));
  to.owned = std::move(owned);
  to.recomputed.merge(from.recomputed);
  for (const int node : from.owned) owner_[static_cast<size_t>(node)] = into;
  from = {};
  find_needed();
}

std::vector<int> Units::reading(int node) const {
  std::vector<int> found;
  const auto is_result = [&](Value v) { return v.node == node; };
  for (int u = 0; u < size(); ++u) {
    if (!body(u).empty() && std::ranges::any_of(reads(u), is_result)) found.push_back(u);
  }
  return found;
}

bool Units::needs_any(int u, const std::vector<int>& others) const {
  const std::set<int> found = needs(u, -1);
  return std::ranges::any_of(others, [&](int other) { return found.contains(other); });
}

void Units::hand_over(int node, const std::vector<int>& nodes, int to, const std::vector<int>& readers) {
  std::set<int> waits(readers.begin(), readers.end());
  const auto is_late = [&](int u) { return waits.contains(u); };
  const auto first = std::ranges::find_if(order_, is_late), last = std::ranges::find(order_, to);
  if (first < last) {
    for (auto it = first; it != last; ++it) {
      if (std::ranges::any_of(reads(*it), [&](Value v) { return is_late(owner(v.node)); })) waits.insert(*it);
    }
    std::stable_partition(first, last + 1, [&](int u) { return !is_late(u); });
  }
  std::erase(units_[static_cast<size_t>(owner(node))].owned, node);
  Unit& unit = units_[static_cast<size_t>(to)];
  unit.owned.insert(std::ranges::lower_bound(unit.owned, node), node);
  unit.recomputed.erase(node);
  owner_[static_cast<size_t>(node)] = to;
  recompute(to, nodes);
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
      for (Value v : graph_.node(node).operands) direct.insert(before_widening(graph_, v));
    }
    std::set<Value> indirect;  // read by a broadcast of the body
    for (Value v : direct) {
      if (is_free(graph_, graph_.node(v))) {
        for (Value inner : graph_.node(v).operands) indirect.insert(before_widening(graph_, inner));
      }
    }
    for (Value v : externals(body)) {
      Readers& r = readers_[v];
      if (u.whole) {
        r.heroes.push_back(*it);
      } else if (direct.contains(v) && !indirect.contains(v)) {
        r.fusible.push_back(*it);
      } else if (indirect.contains(v) && !direct.contains(v)) {
        r.repeating.push_back(*it);
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
