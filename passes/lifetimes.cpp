#include "passes/lifetimes.h"

#include <algorithm>

#include "ir/op.h"
#include "passes/in_place.h"

namespace difuse::passes {

using ir::Value;

Lifetimes::Lifetimes(const ir::Graph& graph) : graph_(graph), readers_(static_cast<size_t>(graph.size())) {
  const std::vector<bool> live = graph.live();
  for (int id = 0; id < graph.size(); ++id) {
    readers_[static_cast<size_t>(id)].resize(graph.node(id).types.size());
    if (!live[static_cast<size_t>(id)]) continue;
    for (const Value v : graph.node(id).operands) {
      if (list(v).empty() || list(v).back() != id) list(v).push_back(id);
    }
  }
  for (const auto* named : {&graph.outputs(), &graph.updates()}) {
    for (const ir::NamedValue& n : *named) {
      if (list(n.value).empty() || list(n.value).back() != graph.size()) list(n.value).push_back(graph.size());
    }
  }
}

int Lifetimes::read_until(int reader) const {
  if (reader == graph_.size() || !ir::has_trait(graph_.node(reader), ir::kView)) return reader;
  return std::max(reader, last_read({reader, 0}));
}

int Lifetimes::last_read(Value v) const {
  int last = v.node;
  for (const int reader : readers(v)) last = std::max(last, read_until(reader));
  return last;
}

/// By result.
std::vector<bool> Lifetimes::made_in_place(int id) const {
  const ir::Node& node = graph_.node(id);
  const InPlace in_place(graph_, id);
  std::vector<bool> is_taken(node.operands.size(), false), result(node.types.size(), false);
  for (size_t r = 0; r < result.size(); ++r) {
    for (size_t o = 0; o < is_taken.size() && !result[r]; ++o) {
      const Value v = node.operands[o];
      const bool stays = is_taken[o] || last_read(v) > id || ir::has_trait(graph_.node(v), ir::kLeaf);
      if (stays || !in_place.allows(static_cast<int>(o), static_cast<int>(r))) continue;
      result[r] = is_taken[o] = true;
    }
  }
  return result;
}

std::vector<int64_t> Lifetimes::live_bytes(const std::function<int64_t(const ir::Type&)>& bytes) const {
  std::vector<int64_t> live(static_cast<size_t>(graph_.size()), 0);
  for (int id = 0; id < graph_.size(); ++id) {
    const ir::Node& node = graph_.node(id);
    if (ir::has_trait(node, ir::kLeaf) || ir::has_trait(node, ir::kView)) continue;
    const std::vector<bool> in_place = made_in_place(id);
    for (int r = 0; r < static_cast<int>(node.types.size()); ++r) {
      const int64_t kept = bytes(node.types[static_cast<size_t>(r)]);
      const int last = std::min(last_read({id, r}), graph_.size() - 1);
      const int first = in_place[static_cast<size_t>(r)] ? id + 1 : id;
      for (int t = first; t <= last; ++t) live[static_cast<size_t>(t)] += kept;
    }
  }
  return live;
}

}  // namespace difuse::passes
