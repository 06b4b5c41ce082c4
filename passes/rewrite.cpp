#include "passes/rewrite.h"

#include <fmt/format.h>

#include "ir/error.h"
#include "ir/text.h"

namespace difuse::passes {
namespace {

constexpr int kMostRounds = 100;

ir::Graph without_dead_code(const ir::Graph& graph) {
  return ir::rebuild(graph, [](ir::Graph& to, int, const ir::Node& node, const std::vector<ir::Value>& operands) {
    return ir::copy_node(to, node, operands);
  });
}

}  // namespace

bool same_graph(const ir::Graph& a, const ir::Graph& b) {
  if (a.size() != b.size() || a.name() != b.name() || a.outputs() != b.outputs() || a.updates() != b.updates()) {
    return false;
  }
  for (int id = 0; id < a.size(); ++id) {
    if (ir::node_key(a.node(id)) != ir::node_key(b.node(id))) return false;
  }
  return true;
}

PassResult remove_dead_code(const ir::Graph& graph, PassContext&) {
  ir::Graph result = without_dead_code(graph);
  const bool changed = !same_graph(graph, result);
  return {std::move(result), changed};
}

PassResult rewrite(const ir::Graph& graph, std::span<const Rule> rules, PassContext& context) {
  std::vector<std::vector<const Rule*>> by_op(ir::all_ops().size());
  for (const Rule& rule : rules) by_op[static_cast<size_t>(rule.op)].push_back(&rule);

  ir::Graph current = without_dead_code(graph);
  for (int round = 0;; ++round) {
    if (round == kMostRounds) throw Error(fmt::format("rewriting has not come to rest after {} rounds", kMostRounds));
    int applied = 0;
    ir::Graph next =
        ir::rebuild(current, [&](ir::Graph& to, int, const ir::Node& node, const std::vector<ir::Value>& operands) {
          ir::Builder build(to);
          const ir::Node mapped{node.op, operands, node.attrs, node.types};
          for (const Rule* rule : by_op[static_cast<size_t>(node.op)]) {
            const ir::Value v = rule->apply(build, mapped);
            if (!v.valid()) continue;
            if (!context.fuel.spend()) break;
            if (to.type(v) != node.types[0]) {
              throw Error(
                  fmt::format("rule {} makes {} of {}", rule->name, to_string(to.type(v)), to_string(node.types[0])));
            }
            ++applied;
            return std::vector<ir::Value>{v};
          }
          return ir::copy_node(to, node, operands);
        });
    current = without_dead_code(next);  // The operands of a rewritten node may have lost their last reader.
    if (applied == 0) break;
  }
  const bool changed = !same_graph(graph, current);
  return {std::move(current), changed};
}

}  // namespace difuse::passes
