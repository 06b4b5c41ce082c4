#include "passes/fusion/emit.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "ir/error.h"
#include "ir/op.h"
#include "passes/fusion/traits.h"

namespace difuse::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

/// Builds one body: its inputs stand for `operands`, its outputs are the values `results`.
class BodyWriter {
 public:
  BodyWriter(const Graph& from, const std::vector<int>& nodes) : from_(from), nodes_(nodes), body_("body") {}

  Graph write(const std::vector<Value>& operands, const std::vector<Value>& results) {
    for (size_t i = 0; i < operands.size(); ++i) {
      const ir::Type& t = from_.type(operands[i]);
      mapped_[operands[i]] = body_.add(ir::Op::input, {}, ir::LeafAttrs{std::to_string(i), t.dtype, t.shape});
    }
    for (int id : nodes_) copy(id);
    for (size_t i = 0; i < results.size(); ++i) body_.set_output(std::to_string(i), mapped_.at(results[i]));
    return std::move(body_);
  }

 private:
  void copy(int id) {
    const Node& node = from_.node(id);
    std::vector<Value> operands;
    for (Value v : node.operands) {
      if (!mapped_.contains(v)) copy(v.node);  // free: a broadcast, a constant or a widening cast
      operands.push_back(mapped_.at(v));
    }
    const std::vector<Value> copied = ir::copy_node(body_, node, operands);
    for (int r = 0; r < static_cast<int>(copied.size()); ++r) mapped_[{id, r}] = copied[static_cast<size_t>(r)];
  }

  const Graph& from_;
  const std::vector<int>& nodes_;
  Graph body_;
  std::map<Value, Value> mapped_;
};

std::vector<Value> results_of(const Units& units, int u, const std::vector<int>& nodes,
                              const std::vector<int>& more = {}) {
  std::vector<Value> results;
  for (const int id : nodes) {
    const bool is_more = std::ranges::count(more, id) > 0;
    for (int r = 0; r < static_cast<int>(units.graph().node(id).types.size()); ++r) {
      if (is_more || (units.owner(id) == u && units.needed({id, r}))) results.push_back({id, r});
    }
  }
  return results;
}

class Emitter {
 public:
  Emitter(const Units& units, FusionReport& report)
      : units_(units), from_(units.graph()), report_(report), to_(from_.name()) {}

  Graph run() {
    count_operands();
    // Inputs and states are the graph's interface: they come first and stay even when nothing reads them.
    for (int id = 0; id < from_.size(); ++id) {
      const ir::Op op = from_.node(id).op;
      if (op != ir::Op::input && op != ir::Op::state) continue;
      mapped_[{id, 0}] = ir::copy_node(to_, from_.node(id), {})[0];
      if (units_.owner(id) >= 0 && waiting_.contains(units_.owner(id))) finish(units_.owner(id));
    }
    while (!ready_fusions_.empty() || !ready_nodes_.empty()) {
      auto& ready = ready_fusions_.empty() ? ready_nodes_ : ready_fusions_;
      const int u = ready.begin()->second;
      ready.erase(ready.begin());
      if (is_fusion_[static_cast<size_t>(u)]) {
        emit_fusion(u);
      } else {
        emit_node(units_.body(u)[0]);
      }
      finish(u);
    }
    for (const auto& [u, units] : waiting_) {
      if (units > 0) throw Error(fmt::format("fusing made %{} wait for itself", units_.unit(u).owned[0]));
    }
    for (const ir::NamedValue& n : from_.outputs()) to_.set_output(n.name, mapped_.at(n.value));
    for (const ir::NamedValue& n : from_.updates()) to_.set_update(n.name, mapped_.at(n.value));
    return std::move(to_);
  }

 private:
  using Ready = std::set<std::pair<int, int>>;  // first owned node, unit

  static bool is_interface(const Node& n) { return n.op == ir::Op::input || n.op == ir::Op::state; }

  std::vector<Value> operands_of(int u) const {
    if (is_fusion_[static_cast<size_t>(u)]) return units_.externals(units_.body(u));
    return from_.node(units_.body(u)[0]).operands;
  }

  void count_operands() {
    is_fusion_.resize(static_cast<size_t>(units_.size()));
    for (int u = 0; u < units_.size(); ++u) {
      if (units_.body(u).empty()) continue;
      is_fusion_[static_cast<size_t>(u)] = units_.unit(u).fusible && is_worth_a_fusion(from_, units_.body(u));
      std::set<int> producers;
      for (Value v : operands_of(u)) producers.insert(units_.owner(v.node));
      waiting_[u] = static_cast<int>(producers.size());
      for (int p : producers) readers_[p].push_back(u);
      if (producers.empty() && !is_interface(from_.node(units_.body(u)[0]))) make_ready(u);
    }
  }

  void make_ready(int u) {
    const bool early = is_fusion_[static_cast<size_t>(u)] && !units_.unit(u).whole;
    auto& ready = early ? ready_fusions_ : ready_nodes_;
    ready.insert({units_.unit(u).lead, u});
  }

  void finish(int u) {
    for (int reader : readers_[u]) {
      if (--waiting_[reader] == 0) make_ready(reader);
    }
  }

  std::vector<Value> map(const std::vector<Value>& values) const {
    std::vector<Value> result;
    for (Value v : values) result.push_back(mapped_.at(v));
    return result;
  }

  void emit_node(int id) {
    const std::vector<Value> copied = ir::copy_node(to_, from_.node(id), map(from_.node(id).operands));
    for (int r = 0; r < static_cast<int>(copied.size()); ++r) mapped_[{id, r}] = copied[static_cast<size_t>(r)];
  }

  void emit_fusion(int u) {
    const std::vector<int>& nodes = units_.body(u);
    const std::vector<Value> operands = units_.externals(nodes);
    const std::vector<Value> results = results_of(units_, u, nodes);
    const ir::Hero hero = hero_of(from_, nodes);
    std::string ops;
    int64_t bytes = 0;
    for (int id : nodes) ops += fmt::format(" {}", ir::to_string(from_.node(id).op));
    for (Value v : operands) bytes += from_.type(v).bytes();
    for (Value v : results) bytes += from_.type(v).bytes();
    auto body = std::make_shared<const Graph>(body_of(units_, u, nodes));
    const Value first = to_.add(ir::Op::fusion, map(operands), ir::FusionAttrs{hero, std::move(body)});
    for (size_t i = 0; i < results.size(); ++i) mapped_[results[i]] = {first.node, static_cast<int32_t>(i)};
    report_.lines.push_back(fmt::format("fused {} of %{} over {}: {} operands, {} results, {} bytes:{}",
                                        ir::to_string(hero), units_.unit(u).lead, ir::to_string(units_.unit(u).shape),
                                        operands.size(), results.size(), bytes, ops));
  }

  const Units& units_;
  const Graph& from_;
  FusionReport& report_;
  Graph to_;
  std::map<Value, Value> mapped_;
  std::vector<bool> is_fusion_;
  std::map<int, int> waiting_;  // unit -> units it still waits for
  std::map<int, std::vector<int>> readers_;
  Ready ready_fusions_, ready_nodes_;
};

}  // namespace

Graph body_of(const Units& units, int u, const std::vector<int>& nodes, const std::vector<int>& more) {
  return BodyWriter(units.graph(), nodes).write(units.externals(nodes), results_of(units, u, nodes, more));
}

bool is_worth_a_fusion(const Graph& graph, const std::vector<int>& nodes) {
  if (nodes.size() > 1) return true;
  const Node& node = graph.node(nodes[0]);
  return std::ranges::any_of(node.operands, [&](Value v) { return is_copied(graph, node, v); });
}

Graph emit(const Units& units, FusionReport& report) { return Emitter(units, report).run(); }

}  // namespace difuse::passes
