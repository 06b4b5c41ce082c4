#include "passes/fusion/preamble.h"

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
using ir::Op;
using ir::Shape;
using ir::Value;

class Preambles {
 public:
  Preambles(Units& units, PassContext& context, PreambleExtent extent, FusionReport& report)
      : units_(units), graph_(units.graph()), fuel_(context.fuel), extent_(extent), report_(report) {}

  void run() {
    for (int from = 0; from < units_.size(); ++from) {
      if (!finishes(from)) continue;
      for (int u = 0; u < units_.size() && !units_.body(from).empty(); ++u) {
        if (u != from && !units_.body(u).empty()) consider(from, u);
      }
    }
  }

 private:
  const Node& first(int u) const { return graph_.node(units_.body(u)[0]); }

  /// Rows of one image each: [images, groups, row].
  bool loops_over_rows(int u) const {
    const Unit& unit = units_.unit(u);
    if (!unit.fusible || unit.whole || unit.shape.size() != 3) return false;
    bool reduces = false;
    for (const int id : units_.body(u)) {
      const Node& node = graph_.node(id);
      if (is_reduction(node)) {
        if (!is_row_reduction(graph_, node) || node.types[0].shape.size() != 2) return false;
        if (graph_.type(node.operands[0]).shape != unit.shape || units_.needed({id, 0})) return false;
        reduces = true;
      } else if (!is_pointwise(graph_, node) || node.types[0].shape != unit.shape) {
        return false;
      }
    }
    return reduces;
  }
  bool finishes(int u) const {
    if (units_.body(u).empty()) return false;
    return (units_.body(u).size() == 1 && first(u).op == Op::group_finish) || loops_over_rows(u);
  }
  /// Images and channels of what the unit makes.
  std::pair<int64_t, int64_t> made_by(int from) const {
    if (first(from).op == Op::group_finish) return {first(from).types[0].shape[0], first(from).types[0].shape[1]};
    const Shape& shape = units_.unit(from).shape;
    return {shape[0], shape[1] * shape[2]};
  }

  /// Of one image, and of what all have in common.
  int64_t partial_bytes(int from) const {
    int64_t bytes = 0;
    const bool is_finish = first(from).op == Op::group_finish;
    for (const Value v : is_finish ? first(from).operands : units_.externals(units_.body(from))) {
      const ir::Type& type = graph_.type(v);
      bytes += type.shape.size() == 3 ? type.bytes() / type.shape[0] : type.bytes();
    }
    return bytes;
  }

  /// Whether all blocks of the loop's kernel are inside one of so many images.
  bool loops_over_images(int u, int64_t images) const {
    const Unit& unit = units_.unit(u);
    if (!unit.fusible || unit.whole || unit.shape.size() != 4 || unit.shape[0] != images || unit.shape[3] == 1)
      return false;
    const bool is_large = unit.shape[1] * unit.shape[2] >= kLeastImagePixels;
    return std::ranges::all_of(units_.body(u), [&](int id) {
      const Node& node = graph_.node(id);
      return is_pointwise(graph_, node) || keeps_neighbours(node) || node.op == Op::slice ||
             (is_large && sums_pixels(graph_, node));
    });
  }

  /// What a block reads and writes in its loop.
  int64_t block_bytes(int u) const {
    int64_t bytes = 0;
    for (const Value v : units_.externals(units_.body(u))) bytes += graph_.type(v).bytes();
    for (const int id : units_.body(u)) {
      if (units_.needed({id, 0})) bytes += graph_.type({id, 0}).bytes();
    }
    return bytes * kBlockElements / ir::element_count(units_.unit(u).shape);
  }

  /// The units that do nothing but give a result of `from` another shape, for the loop to read.
  std::set<int> reshapes_between(int from, int u) const {
    std::set<int> found;
    for (const Value v : units_.externals(units_.body(u))) {
      const Node& node = graph_.node(v);
      if (node.op == Op::reshape && units_.owner(node.operands[0].node) == from) found.insert(units_.owner(v.node));
    }
    return found;
  }

  void consider(int from, int u) {
    const auto [images, channels] = made_by(from);
    if (!loops_over_images(u, images)) return;
    const std::set<int> reshapes = reshapes_between(from, u);
    const bool reads =
        std::ranges::any_of(units_.externals(units_.body(u)), [&](Value v) { return units_.owner(v.node) == from; });
    // Rows are read as an image's channels.
    if (reads == !reshapes.empty() || reads != (first(from).op == Op::group_finish)) return;
    const std::string pair = fmt::format("%{} {} in the preamble of %{}", units_.unit(from).lead,
                                         ir::to_string(first(from).op), units_.unit(u).lead);
    const std::string reason = refusal(from, u, reshapes, channels);
    if (!reason.empty()) {
      if (extent_ == PreambleExtent::small) return;  // It is asked again.
      report_.lines.push_back(fmt::format("refused {}: {}", pair, reason));
    } else if (fuel_.spend()) {
      report_.lines.push_back(fmt::format("joined {}", pair));
      for (const int reshape : reshapes) units_.absorb(u, reshape);
      units_.absorb(u, from);
    }
  }

  std::string refusal(int from, int u, const std::set<int>& reshapes, int64_t channels) const {
    for (const int reshape : reshapes) {
      if (first(reshape).types[0].shape != Shape{units_.unit(u).shape[0], channels})
        return "it is read in another shape";
      const int between = units_.between(reshape, u);
      if (between >= 0) return fmt::format("a path goes round by %{}", units_.unit(between).lead);
    }
    const int between = units_.between(from, u, reshapes);
    if (between >= 0) return fmt::format("a path goes round by %{}", units_.unit(between).lead);
    const bool is_large = extent_ == PreambleExtent::large && first(from).op == Op::group_finish;
    const int64_t bytes = partial_bytes(from), most = is_large ? 2 * block_bytes(u) : block_bytes(u) / 2;
    if (bytes > most) return fmt::format("{} bytes an image, which are more than {} of a block", bytes, most);
    const int64_t loads = bytes / 16;
    if (loads > kMostPreambleLoads) return fmt::format("{} loads, which are more than {}", loads, kMostPreambleLoads);
    std::vector<int> both;
    std::ranges::set_union(units_.body(u), units_.body(from), std::back_inserter(both));
    if (std::ssize(both) > kMostBodyNodes || std::ssize(units_.externals(both)) > kMostOperands) {
      return fmt::format("more than {} ops or {} operands", kMostBodyNodes, kMostOperands);
    }
    return {};
  }

  Units& units_;
  const ir::Graph& graph_;
  Fuel& fuel_;
  PreambleExtent extent_;
  FusionReport& report_;
};

}  // namespace

void join_preambles(Units& units, PassContext& context, PreambleExtent extent, FusionReport& report) {
  units.find_needed();
  if (context.device.kind == ir::DeviceSpec::Kind::cuda) Preambles(units, context, extent, report).run();
}

}  // namespace difuse::passes
