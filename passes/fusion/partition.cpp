#include "passes/fusion/partition.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace difuse::passes {

Partition::Partition(const ir::Graph& graph)
    : users_(graph.users()), live_(graph.live()), seen_(static_cast<size_t>(graph.size()), 0) {
  unit_of_.resize(static_cast<size_t>(graph.size()));
  std::iota(unit_of_.begin(), unit_of_.end(), 0);
  for (int id = 0; id < graph.size(); ++id) members_.push_back({id});
}

int Partition::on_path(int from, int to) const {
  ++search_;
  const int last = members(to).back();
  struct Step {
    int unit, first;  // `first`: the node by which the path left
  };
  std::vector<Step> open;
  auto visit = [&](int unit, int first) {
    for (int m : members(unit)) {
      for (int user : users(m)) {
        const int next = unit_of(user);
        if (!live(user) || next == unit || (unit == from && next == to)) continue;
        if (next == to) return first;
        // Node numbers grow along every edge, so a unit that begins after the goal's last node does not lead there.
        if (members(next).front() > last || seen_[static_cast<size_t>(next)] == search_) continue;
        seen_[static_cast<size_t>(next)] = search_;
        open.push_back({next, unit == from ? user : first});
      }
    }
    return -1;
  };
  seen_[static_cast<size_t>(from)] = search_;
  visit(from, -1);
  while (!open.empty()) {
    const Step step = open.back();
    open.pop_back();
    if (const int found = visit(step.unit, step.first); found >= 0) return found;
  }
  return -1;
}

int Partition::between(int a, int b) const {
  const int forth = on_path(a, b);
  return forth >= 0 ? forth : on_path(b, a);
}

void Partition::merge(int a, int b) {
  auto& to = members_[static_cast<size_t>(a)];
  auto& from = members_[static_cast<size_t>(b)];
  std::vector<int> both;
  std::ranges::merge(to, from, std::back_inserter(both));
  for (int m : from) unit_of_[static_cast<size_t>(m)] = a;
  to = std::move(both);
  from.clear();
}

}  // namespace difuse::passes
