#include "passes/fusion/grow.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "ir/op.h"
#include "passes/fusion/cost.h"
#include "passes/fusion/emit.h"
#include "passes/fusion/epilogue.h"
#include "passes/fusion/movement.h"
#include "passes/fusion/partition.h"
#include "passes/fusion/preamble.h"
#include "passes/fusion/prologue.h"
#include "passes/fusion/recompute.h"
#include "passes/fusion/sums.h"
#include "passes/fusion/traits.h"
#include "passes/fusion/units.h"
#include "passes/rewrite.h"

namespace difuse::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Shape;
using ir::Value;

class Grower {
 public:
  Grower(const Graph& graph, const ir::DeviceSpec& device, FusionReport& report, bool epilogues)
      : graph_(graph),
        report_(report),
        partition_(graph),
        whole_(epilogues ? grow_epilogues(graph, device, partition_, report)
                         : std::vector<bool>(static_cast<size_t>(graph.size()), false)) {}

  const Partition& grow_all() {
    take_prologues();
    std::vector<bool> grown(static_cast<size_t>(graph_.size()), false);
    for (const HeroRule& rule : hero_rules()) {
      if (rule.epilogue_only) continue;
      for (int id = 0; id < graph_.size(); ++id) {
        if (!partition_.live(id) || !rule.is_hero(graph_.node(id)) || is_widening(graph_, graph_.node(id))) continue;
        const int unit = partition_.unit_of(id);
        if (grown[static_cast<size_t>(unit)] || is_whole_unit(unit)) continue;
        grow(unit);
        grown[static_cast<size_t>(unit)] = true;
      }
    }
    explain_refusals();
    return partition_;
  }

 private:
  /// Every elementwise node first joins its readers, last nodes first: a value is best made where it is used. Were it
  /// made beside another reader of its operands instead (a new moment beside the gradient's norm), it would have to be
  /// written for a reader that cannot join there.
  void take_prologues() {
    for (int id = graph_.size() - 1; id >= 0; --id) {
      if (!partition_.live(id) || !is_pointwise(graph_, graph_.node(id))) continue;
      if (is_whole_unit(partition_.unit_of(id))) continue;
      for (int user : partition_.users(id)) {
        if (joins(user, graph_.node(id).types[0].shape)) try_merge(partition_.unit_of(id), partition_.unit_of(user));
      }
    }
  }

  bool try_merge(int unit, int other) {
    if (other == unit || !fits(unit, other) || !rows_agree(unit, other) || partition_.between(unit, other) >= 0) {
      return false;
    }
    partition_.merge(unit, other);
    return true;
  }

  /// Whether the node runs over `shape` element by element, and no hero has claimed it that takes no more.
  bool joins(int id, const Shape& shape) const {
    return runs_over(id, shape) && !is_whole_unit(partition_.unit_of(id));
  }
  bool runs_over(int id, const Shape& shape) const {
    const Node& node = graph_.node(id);
    if (!partition_.live(id) || !(is_pointwise(graph_, node) || is_reduction(node))) return false;
    return iteration_shape(graph_, node) == shape;
  }
  bool is_whole_unit(int unit) const { return whole_[static_cast<size_t>(unit)]; }

  /// Nodes over `shape` that share data with the unit: producers, readers, siblings.
  std::set<int> candidates(int unit, const Shape& shape) const {
    std::set<int> found;
    auto consider = [&](int id) {
      if (partition_.unit_of(id) != unit && joins(id, shape)) found.insert(id);
    };
    for (int member : partition_.members(unit)) {
      for (int user : partition_.users(member)) consider(user);
      for (Value operand : graph_.node(member).operands) {
        const Value v = before_widening(graph_, operand);
        if (is_row_repeat(graph_, graph_.node(v))) consider(graph_.node(v).operands[0].node);
        if (is_free(graph_, graph_.node(v)) || graph_.type(v).shape != shape) continue;
        consider(v.node);
        for (int sibling : partition_.users(v.node)) {
          if (reads(graph_, sibling, v)) consider(sibling);
        }
      }
    }
    return found;
  }

  std::vector<int> members_of_both(int a, int b) const {
    std::vector<int> both;
    std::ranges::merge(partition_.members(a), partition_.members(b), std::back_inserter(both));
    return both;
  }

  bool fits(int a, int b) const {
    const std::vector<int> both = members_of_both(a, b);
    if (std::ssize(both) > kMostBodyNodes) return false;
    std::set<Value> operands;
    for (int id : both) {
      for (Value operand : graph_.node(id).operands) {
        const Value v = before_widening(graph_, operand);
        if (!std::ranges::binary_search(both, v.node)) operands.insert(v);
      }
    }
    return std::ssize(operands) <= kMostOperands;
  }

  /// Where one of the two repeats what the other reduces, the loop runs row by row: all reductions are over those rows.
  bool rows_agree(int a, int b) const {
    const std::vector<int> both = members_of_both(a, b);
    const auto repeats = [&](Value v) {
      return is_row_repeat(graph_, graph_.node(v)) && std::ranges::binary_search(both, graph_.node(v).operands[0].node);
    };
    const bool by_row =
        std::ranges::any_of(both, [&](int id) { return std::ranges::any_of(graph_.node(id).operands, repeats); });
    if (!by_row) return true;
    std::set<std::vector<int64_t>> axes;
    for (int id : both) {
      const Node& node = graph_.node(id);
      if (!is_reduction(node)) continue;
      if (!is_row_reduction(graph_, node)) return false;
      axes.insert(node.as<ir::ReduceAttrs>().axes);
    }
    return axes.size() == 1;
  }

  void grow(int unit) {
    const Shape shape = iteration_shape(graph_, graph_.node(partition_.members(unit)[0]));
    // A refused candidate may be legal later, once what stood between has joined.
    for (bool grew = true; grew;) {
      grew = false;
      for (int candidate : candidates(unit, shape)) {
        if (try_merge(unit, partition_.unit_of(candidate))) grew = true;
      }
    }
  }

  /// One line for each pair of units that could have merged by shape along an edge, but did not.
  void explain_refusals() {
    std::set<std::pair<int, int>> told;
    for (int id = 0; id < graph_.size(); ++id) {
      const Node& node = graph_.node(id);
      if (!partition_.live(id) || !(is_pointwise(graph_, node) || is_reduction(node))) continue;
      const Shape& shape = iteration_shape(graph_, node);
      for (Value operand : node.operands) {
        const Value v = source_of(graph_, operand);
        const int unit = partition_.unit_of(id), other = partition_.unit_of(v.node);
        if (is_whole_unit(unit) || is_whole_unit(other)) continue;  // grow_epilogues told.
        if (unit == other || !joins(v.node, shape) || !told.insert({unit, other}).second) continue;
        const int between = partition_.between(unit, other);
        std::string why = fmt::format("more than {} ops or {} operands", kMostBodyNodes, kMostOperands);
        if (!rows_agree(unit, other)) why = "reductions over other axes than those of the rows";
        if (between >= 0) {
          why = fmt::format("a path goes round by %{} {}", between, ir::to_string(graph_.node(between).op));
        }
        report_.lines.push_back(fmt::format("refused %{} {} with %{} {}: {}", v.node, ir::to_string(graph_.node(v).op),
                                            id, ir::to_string(node.op), why));
      }
    }
  }

  const Graph& graph_;
  FusionReport& report_;
  Partition partition_;
  const std::vector<bool> whole_;  // by unit: has a hero that takes readers of its result alone
};

/// Which units may become a fusion: each that is more than a plain node spends fuel.
std::vector<bool> pay(const Graph& graph, const Partition& partition, bool epilogues, Fuel& fuel) {
  std::vector<bool> may_fuse(static_cast<size_t>(graph.size()), false);
  for (int unit = 0; unit < graph.size(); ++unit) {
    const std::vector<int>& members = partition.members(unit);
    if (members.empty() || !partition.live(members[0])) continue;
    const Node& first = graph.node(members[0]);
    const bool runs = is_pointwise(graph, first) || is_reduction(first), worth = is_worth_a_fusion(graph, members);
    if (!runs && !(is_whole(first) && epilogues)) continue;
    may_fuse[static_cast<size_t>(unit)] = !worth || fuel.spend();
  }
  return may_fuse;
}

}  // namespace

PassResult fuse_clusters(const Graph& graph, PassContext& context, FusionReport* report,
                         const FusionSettings& settings) {
  const bool epilogues = settings.epilogues;
  FusionReport unread;
  FusionReport& lines = report ? *report : unread;
  Grower grower(graph, context.device, lines, epilogues);
  const Partition& partition = grower.grow_all();
  Units units(graph, partition, pay(graph, partition, epilogues, context.fuel));
  recompute_cheap_values(units, context, lines);
  if (epilogues) join_sums(units, context, lines);
  join_movement(units, context, lines);
  join_preambles(units, context, PreambleExtent::small, lines);
  if (epilogues) join_prologues(units, context, settings, lines);
  join_preambles(units, context, PreambleExtent::large, lines);
  join_draws_and_concatenations(units, context, lines);
  Graph result = emit(units, lines);
  const bool changed = !same_graph(graph, result);
  return {std::move(result), changed};
}

}  // namespace difuse::passes
