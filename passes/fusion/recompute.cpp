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
    const std::vector<int> nodes = units_.closure(units_.owner(node), {node});
    if (std::ssize(nodes) > kMostRecomputedNodes) return false;
    if (std::ranges::any_of(nodes, [&](int id) { return is_whole(graph.node(id)) || is_reduction(graph.node(id)); })) {
      return false;
    }

    std::vector<int> able, gaining;
    int64_t saved = graph.type(v).bytes(), saved_by_gaining = 0;  // the write, less what the readers read more
    std::vector<int> readable;
    for (int u : readers->fusible) {
      if (units_.unit(u).shape == graph.type(v).shape) readable.push_back(u);
    }
    for (int u : readers->repeating) {
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
        !readers->as_a_whole() && able.size() == readers->fusible.size() + readers->repeating.size() && saved > 0;
    if (!everywhere) able = gaining, saved = saved_by_gaining;
    if (able.empty() || !fuel_.spend()) return false;
    for (int u : able) {
      units_.recompute(u, nodes);
      report_.lines.push_back(fmt::format("recomputed %{} {} ({} ops) in the fusion of %{}", node,
                                          ir::to_string(graph.node(node).op), nodes.size(), units_.unit(u).owned[0]));
    }
    report_.lines.back() += fmt::format(": {} bytes less", saved);
    units_.find_needed();
    return true;
  }

 private:
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
