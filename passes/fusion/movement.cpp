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
  const int between = units.between(movement, u);
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

}  // namespace

void join_movement(Units& units, PassContext& context, FusionReport& report) {
  units.find_needed();
  if (context.device.kind != ir::DeviceSpec::Kind::cuda) return;
  const ir::Graph& graph = units.graph();
  for (int movement = 0; movement < units.size(); ++movement) {
    if (units.body(movement).size() != 1) continue;
    const int id = units.body(movement)[0];
    const Node& node = graph.node(id);
    if (!keeps_neighbours(node)) continue;
    for (const int u : loops_over(units, {id, 0})) {
      const std::string pair =
          fmt::format("%{} {} into the fusion of %{}", id, ir::to_string(node.op), units.unit(u).lead);
      const std::string reason = refusal(units, u, movement);
      if (!reason.empty()) {
        report.lines.push_back(fmt::format("refused {}: {}", pair, reason));
      } else if (context.fuel.spend()) {
        report.lines.push_back(fmt::format("joined {}", pair));
        units.absorb(u, movement);
        break;
      }
    }
  }
}

}  // namespace difuse::passes
