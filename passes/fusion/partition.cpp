#include "passes/fusion/partition.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "passes/fusion/traits.h"

namespace difuse::passes {

Partition::Partition(const ir::Graph& graph)
    : graph_(graph),
      live_(graph.live()),
      users_(static_cast<size_t>(graph.size())),
      seen_(static_cast<size_t>(graph.size()), 0) {
  for (int id = 0; id < graph.size(); ++id) {
    if (!live(id) || source_of(graph, {id, 0}).node != id) continue;
    for (ir::Value v : graph.node(id).operands) {
      auto& list = users_[static_cast<size_t>(source_of(graph, v).node)];
      if (list.empty() || list.back() != id) list.push_back(id);
    }
  }
  unit_of_.resize(static_cast<size_t>(graph.size()));
  std::iota(unit_of_.begin(), unit_of_.end(), 0);
  order_ = position_ = unit_of_;
  for (int id = 0; id < graph.size(); ++id) members_.push_back({id});
}

int Partition::on_path(int from, int to) const {
  ++search_;
  const int goal = position_[static_cast<size_t>(to)];
  struct Step {
    int unit, first;  // `first`: the node by which the path left
  };
  std::vector<Step> open;
  auto visit = [&](int unit, int first) {
    for (int m : members(unit)) {
      for (int user : users(m)) {
        const int next = unit_of(user);
        if (next == unit || (unit == from && next == to)) continue;
        if (next == to) return first;
        if (position_[static_cast<size_t>(next)] > goal || seen_[static_cast<size_t>(next)] == search_) continue;
        seen_[static_cast<size_t>(next)] = search_;
        open.push_back({next, unit == from ? user : first});
      }
    }
    return -1;
  };
  visit(from, -1);
  while (!open.empty()) {
    const Step step = open.back();
    open.pop_back();
    if (const int found = visit(step.unit, step.first); found >= 0) return found;
  }
  return -1;
}

int Partition::between(int a, int b) const {
  const bool forth = position_[static_cast<size_t>(a)] < position_[static_cast<size_t>(b)];
  return forth ? on_path(a, b) : on_path(b, a);
}

void Partition::merge(int a, int b) {
  const auto [low, high] = std::minmax(position_[static_cast<size_t>(a)], position_[static_cast<size_t>(b)]);
  auto& to = members_[static_cast<size_t>(a)];
  auto& from = members_[static_cast<size_t>(b)];
  std::vector<int> both;
  std::ranges::merge(to, from, std::back_inserter(both));
  for (int m : from) unit_of_[static_cast<size_t>(m)] = a;
  to = std::move(both);
  from.clear();
  reorder(a, low, high);
}

/// Of the units that stood between the two, those that depend on the earlier one now follow the merged unit. None of
/// them leads to the later one, so everything still goes forward.
void Partition::reorder(int merged, int low, int high) {
  ++search_;
  seen_[static_cast<size_t>(merged)] = search_;
  std::vector<int> before, after, empty;
  for (int p = low; p <= high; ++p) {
    const int unit = order_[static_cast<size_t>(p)];
    if (unit == merged) continue;
    if (members(unit).empty()) {
      empty.push_back(unit);
      continue;
    }
    const bool depends = std::ranges::any_of(members(unit), [&](int m) {
      return std::ranges::any_of(graph_.node(m).operands, [&](ir::Value v) {
        return seen_[static_cast<size_t>(unit_of(source_of(graph_, v).node))] == search_;
      });
    });
    if (depends) seen_[static_cast<size_t>(unit)] = search_;
    (depends ? after : before).push_back(unit);
  }
  before.push_back(merged);
  before.insert(before.end(), after.begin(), after.end());
  before.insert(before.end(), empty.begin(), empty.end());
  for (size_t i = 0; i < before.size(); ++i) {
    const size_t p = static_cast<size_t>(low) + i;
    order_[p] = before[i];
    position_[static_cast<size_t>(before[i])] = static_cast<int>(p);
  }
}

}  // namespace difuse::passes
