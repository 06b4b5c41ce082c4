#include "passes/lifetimes.h"

#include <algorithm>

#include "ir/op.h"

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

std::vector<int64_t> Lifetimes::live_bytes() const {
  std::vector<int64_t> bytes(static_cast<size_t>(graph_.size()), 0);
  for (int id = 0; id < graph_.size(); ++id) {
    const ir::Node& node = graph_.node(id);
    if (ir::has_trait(node, ir::kLeaf) || ir::has_trait(node, ir::kView)) continue;
    for (int r = 0; r < static_cast<int>(node.types.size()); ++r) {
      const int last = std::min(last_read({id, r}), graph_.size() - 1);
      for (int t = id; t <= last; ++t) bytes[static_cast<size_t>(t)] += node.types[static_cast<size_t>(r)].bytes();
    }
  }
  return bytes;
}

}  // namespace difuse::passes
