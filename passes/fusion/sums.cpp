#include "passes/fusion/sums.h"

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

class SumsIntoEpilogues {
 public:
  SumsIntoEpilogues(Units& units, PassContext& context, FusionReport& report)
      : units_(units),
        graph_(units.graph()),
        fuel_(context.fuel),
        averages_take_sums_(context.device.kind == ir::DeviceSpec::Kind::cuda),
        report_(report) {}

  void run() {
    for (int u = 0; u < units_.size(); ++u) {
      if (leaves_sums_alone(u)) consider(u);
    }
  }

 private:
  bool leaves_sums_alone(int u) const {
    const Unit& unit = units_.unit(u);
    if (!unit.fusible || unit.whole || units_.body(u).empty()) return false;
    return std::ranges::all_of(unit.owned, [&](int id) {
      const Node& node = graph_.node(id);
      for (int r = 0; r < static_cast<int>(node.types.size()); ++r) {
        if (units_.needed({id, r}) && !is_of_strips(node) && !sums_pixels(graph_, node)) return false;
      }
      return true;
    });
  }

  /// The units of whole heroes over the unit's shape whose values it reads, the last one first.
  std::set<int, std::greater<>> heroes(int u) const {
    std::set<int, std::greater<>> found;
    for (const Value v : units_.externals(units_.body(u))) {
      const int of = units_.owner(v.node);
      const Unit& unit = units_.unit(of);
      if (unit.whole && unit.shape == units_.unit(u).shape && takes(unit, u)) found.insert(of);
    }
    return found;
  }

  bool takes(const Unit& unit, int u) const {
    const auto is_contraction = [&](int id) { return ir::has_trait(graph_.node(id), ir::kContraction); };
    const auto is_other_sum = [&](int id) { return is_reduction(graph_.node(id)) && !is_of_strips(graph_.node(id)); };
    if (std::ranges::any_of(unit.owned, is_contraction)) return true;
    return averages_take_sums_ && std::ranges::none_of(units_.unit(u).owned, is_other_sum);
  }

  void consider(int u) {
    for (const int into : heroes(u)) {
      const std::string reason = refusal(into, u);
      const std::string pair =
          fmt::format("sums of %{} in the epilogue of %{}", units_.unit(u).owned.back(), units_.unit(into).lead);
      if (!reason.empty()) {
        report_.lines.push_back(fmt::format("refused the {}: {}", pair, reason));
      } else if (fuel_.spend()) {
        report_.lines.push_back(fmt::format("joined the {}", pair));
        units_.absorb(into, u);
        return;
      }
    }
  }

  std::string refusal(int into, int u) const {
    const int between = units_.between(into, u);
    if (between >= 0) return fmt::format("a path goes round by %{}", units_.unit(between).lead);
    std::vector<int> both;
    std::ranges::set_union(units_.body(into), units_.body(u), std::back_inserter(both));
    int64_t tensors = 0;
    for (const Value v : units_.externals(both)) {
      if (graph_.type(v).shape == units_.unit(into).shape) ++tensors;
    }
    if (std::ssize(both) <= kMostEpilogueNodes && tensors <= kMostEpilogueTensors) return {};
    return fmt::format("more than {} ops or {} tensors", kMostEpilogueNodes, kMostEpilogueTensors);
  }

  Units& units_;
  const ir::Graph& graph_;
  Fuel& fuel_;
  const bool averages_take_sums_;
  FusionReport& report_;
};

}  // namespace

void join_sums(Units& units, PassContext& context, FusionReport& report) {
  units.find_needed();
  SumsIntoEpilogues(units, context, report).run();
}

}  // namespace difuse::passes
