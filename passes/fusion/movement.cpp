#include "passes/fusion/movement.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>

#include "ir/op.h"
#include "passes/fusion/cost.h"
#include "passes/fusion/traits.h"

namespace difuse::passes {
namespace {

using ir::Node;
using ir::Value;

/// Nothing where the loop `u` may take the movement in.
std::string refusal(const Units& units, int u, int movement) {
  int between = units.between(movement, u);
  if (between < 0) between = units.between(u, movement);
  if (between >= 0) return fmt::format("a path goes round by %{}", units.unit(between).lead);
  std::vector<int> both;
  std::ranges::set_union(units.body(u), units.body(movement), std::back_inserter(both));
  if (std::ssize(both) <= kMostBodyNodes && std::ssize(units.externals(both)) <= kMostOperands) return {};
  return fmt::format("more than {} ops or {} operands", kMostBodyNodes, kMostOperands);
}

/// The loops over the value's shape that read it element by element.
std::set<int> loops_over(const Units& units, Value v) {
  std::set<int> loops;
  const Readers* readers = units.readers(v);
  if (readers == nullptr) return loops;
  for (const int u : readers->fusible) {
    if (units.unit(u).shape == units.graph().type(v).shape) loops.insert(u);
  }
  return loops;
}

/// Nothing but elementwise ops and what is free.
bool is_pointwise_loop(const Units& units, int u) {
  return units.unit(u).fusible && !units.unit(u).whole && std::ranges::all_of(units.body(u), [&](int id) {
           return is_pointwise(units.graph(), units.graph().node(id));
         });
}
/// Nothing that is reduced, but for statistics that its preamble finishes.
bool takes_draws(const Units& units, int u) {
  return units.unit(u).fusible && !units.unit(u).whole &&
         std::ranges::none_of(units.body(u), [&](int id) { return is_reduction(units.graph().node(id)); });
}

bool is_draw(const Node& node) { return ir::has_trait(node, ir::kRandom); }

class Joiner {
 public:
  Joiner(Units& units, PassContext& context, FusionReport& report)
      : units_(units), graph_(units.graph()), fuel_(context.fuel), report_(report) {}

  /// Nodes that are units of their own, `moves` says which, become part of a loop over their shape that `takes` them.
  void join_readers(bool (*moves)(const Node&), bool (*takes)(const Units&, int loop)) {
    for (const int u : single_units(moves)) {
      for (const int loop : loops_over(units_, {node_of(u), 0})) {
        if (takes(units_, loop) && join(loop, u)) break;
      }
    }
  }

  /// Concatenations become part of the loop that makes all their operands, and nothing else.
  void join_makers() {
    for (const int u : single_units([](const Node& node) { return node.op == ir::Op::concat; })) {
      const int maker = units_.owner(graph_.node(node_of(u)).operands[0].node);
      if (is_pointwise_loop(units_, maker) && makes_only(maker, node_of(u))) join(maker, u);
    }
  }

 private:
  int node_of(int u) const { return units_.body(u)[0]; }

  std::vector<int> single_units(bool (*moves)(const Node&)) const {
    std::vector<int> found;
    for (int u = 0; u < units_.size(); ++u) {
      if (units_.body(u).size() == 1 && moves(graph_.node(node_of(u)))) found.push_back(u);
    }
    return found;
  }

  /// Whether the concatenation's operands are all that others need of the unit, and only they need it.
  bool makes_only(int maker, int concat) const {
    const auto is_made = [&](Value v) { return units_.owner(v.node) == maker; };
    for (const auto* named : {&graph_.outputs(), &graph_.updates()}) {
      if (std::ranges::any_of(*named, [&](const ir::NamedValue& n) { return is_made(n.value); })) return false;
    }
    for (int u = 0; u < units_.size(); ++u) {
      if (u == maker || units_.body(u).empty() || node_of(u) == concat) continue;
      if (std::ranges::any_of(units_.reads(u), is_made)) return false;
    }
    return std::ranges::all_of(graph_.node(concat).operands, is_made);
  }

  bool join(int loop, int u) {
    const int id = node_of(u);
    const std::string pair =
        fmt::format("%{} {} into the fusion of %{}", id, ir::to_string(graph_.node(id).op), units_.unit(loop).lead);
    const std::string reason = refusal(units_, loop, u);
    if (!reason.empty()) {
      report_.lines.push_back(fmt::format("refused {}: {}", pair, reason));
      return false;
    }
    if (!fuel_.spend()) return false;
    report_.lines.push_back(fmt::format("joined {}", pair));
    units_.absorb(loop, u);
    return true;
  }

  Units& units_;
  const ir::Graph& graph_;
  Fuel& fuel_;
  FusionReport& report_;
};

bool computes_places(const PassContext& context) { return context.device.kind == ir::DeviceSpec::Kind::cuda; }

}  // namespace

void join_movement(Units& units, PassContext& context, FusionReport& report) {
  units.find_needed();
  if (!computes_places(context)) return;
  Joiner(units, context, report).join_readers(keeps_neighbours, [](const Units&, int) { return true; });
}

void join_draws_and_concatenations(Units& units, PassContext& context, FusionReport& report) {
  units.find_needed();
  if (!computes_places(context)) return;
  Joiner joiner(units, context, report);
  joiner.join_readers(is_draw, takes_draws);
  joiner.join_makers();
}

}  // namespace difuse::passes
