#include "passes/fusion/recompute.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "ir/op.h"
#include "passes/fusion/cost.h"
#include "passes/fusion/traits.h"

namespace difuse::passes {
namespace {

using ir::Value;

int64_t bytes_of(const ir::Graph& graph, const std::vector<Value>& values) {
  int64_t bytes = 0;
  for (Value v : values) bytes += graph.type(v).bytes();
  return bytes;
}

/// Bytes that unit `u` reads more (less when negative) when its body also holds `nodes`; nothing when it may not.
std::optional<int64_t> extra_reads(const Units& units, int u, const std::vector<int>& nodes) {
  std::vector<int> both;
  std::ranges::set_union(units.body(u), nodes, std::back_inserter(both));
  const std::vector<Value> after = units.externals(both);
  if (std::ssize(both) > kMostBodyNodes || std::ssize(after) > kMostOperands) return std::nullopt;
  return bytes_of(units.graph(), after) - bytes_of(units.graph(), units.externals(units.body(u)));
}

class Recompute {
 public:
  Recompute(Units& units, PassContext& context, FusionReport& report)
      : units_(units),
        fuel_(context.fuel),
        report_(report),
        repeats_(context.device.kind == ir::DeviceSpec::Kind::cuda) {}

  /// Whether anything changed.
  bool consider(int node) {
    const Value v{node, 0};
    const ir::Graph& graph = units_.graph();
    const Readers* readers = units_.readers(v);
    if (!readers || readers->fusible.size() + readers->repeating.size() == 0) return false;
    // Of what is sliced a reader reads that part alone.
    const bool slices = repeats_ && graph.node(node).op == ir::Op::slice;
    if (!is_pointwise(graph, graph.node(node)) && !slices) return false;
    const std::vector<int> all = units_.closure(units_.owner(node), {node});
    if (std::ssize(all) > kMostRecomputedNodes) return false;
    if (std::ranges::any_of(all, [&](int id) { return is_whole(graph.node(id)) || is_reduction(graph.node(id)); })) {
      return false;
    }
    Choice best = choose(v, *readers, all);
    for (const int id : all) {
      if (!may_be_stored(id, v)) continue;
      Choice choice = choose(v, *readers, units_.closure(units_.owner(node), {node}, id), id);
      if (choice.saved > best.saved) best = std::move(choice);
    }
    if (best.readers.empty() || best.saved <= 0 || !fuel_.spend()) return false;
    for (int u : best.readers) {
      units_.recompute(u, best.nodes);
      report_.lines.push_back(fmt::format("recomputed %{} {} ({} ops) in the fusion of %{}", node,
                                          ir::to_string(graph.node(node).op), best.nodes.size(),
                                          units_.unit(u).owned[0]));
    }
    if (best.stored >= 0) {
      report_.lines.back() += fmt::format(", of %{} {}", best.stored, ir::to_string(graph.node(best.stored).op));
    }
    report_.lines.back() += fmt::format(": {} bytes less", best.saved);
    units_.find_needed();
    return true;
  }

 private:
  /// Who computes a value again, by which nodes.
  struct Choice {
    std::vector<int> nodes, readers;
    int stored = -1;    ///< What the nodes are computed from, besides what all of the value is; -1: nothing.
    int64_t saved = 0;  ///< Bytes.
  };

  /// Whether the value may be computed of this one, narrower than itself, that its own unit then stores for that.
  bool may_be_stored(int id, Value v) const {
    const ir::Graph& graph = units_.graph();
    return id != v.node && units_.owner(id) == units_.owner(v.node) && is_pointwise(graph, graph.node(id)) &&
           graph.type({id, 0}).shape == graph.type(v).shape && graph.type({id, 0}).bytes() < graph.type(v).bytes();
  }

  Choice choose(Value v, const Readers& readers, std::vector<int> nodes, int stored = -1) const {
    const ir::Graph& graph = units_.graph();
    const bool slices = graph.node(v).op == ir::Op::slice;
    std::vector<int> able, gaining, readable;
    const int64_t written = stored >= 0 && !units_.needed({stored, 0}) ? graph.type({stored, 0}).bytes() : 0;
    int64_t saved = graph.type(v).bytes() - written, saved_by_gaining = -written;  // less what the readers read more
    for (int u : readers.fusible) {
      if (units_.unit(u).shape == graph.type(v).shape) readable.push_back(u);
    }
    for (int u : readers.repeating) {
      if (may_repeat(u, v)) readable.push_back(u);
    }
    for (int u : readable) {
      auto extra = extra_reads(units_, u, nodes);
      if (!extra) continue;
      // What is sliced is read where it lies. What is repeated is small: a launch less is what counts, at any batch.
      if (slices || units_.unit(u).shape != graph.type(v).shape) extra = 0;
      able.push_back(u);
      saved -= *extra;
      if (*extra >= 0) continue;
      gaining.push_back(u);
      saved_by_gaining -= *extra;
    }
    const bool everywhere =
        !readers.as_a_whole() && able.size() == readers.fusible.size() + readers.repeating.size() && saved > 0;
    return {std::move(nodes), everywhere ? able : gaining, stored, everywhere ? saved : saved_by_gaining};
  }

  /// Whether a small value may be computed for each of the elements that it is repeated for. That is more arithmetic,
  /// and worth it where it saves a launch.
  bool may_repeat(int u, Value v) const {
    constexpr int64_t kLeastRepeats = 16;
    return repeats_ && units_.graph().type(v).elements() * kLeastRepeats <= ir::element_count(units_.unit(u).shape);
  }

  Units& units_;
  Fuel& fuel_;
  FusionReport& report_;
  bool repeats_;
};

}  // namespace

void recompute_cheap_values(Units& units, PassContext& context, FusionReport& report) {
  units.find_needed();
  Recompute recompute(units, context, report);
  // Every acceptance lowers the bytes moved, so this ends.
  for (bool changed = true; changed;) {
    changed = false;
    for (int node = 0; node < units.graph().size(); ++node) {
      if (units.owner(node) >= 0 && recompute.consider(node)) changed = true;
    }
  }
}

}  // namespace difuse::passes
