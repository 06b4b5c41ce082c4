#include "passes/fusion/prologue.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <set>
#include <string>

#include "ir/op.h"
#include "ir/strips.h"
#include "passes/fusion/cost.h"
#include "passes/fusion/emit.h"
#include "passes/fusion/traits.h"
#include "passes/rematerialize.h"

namespace difuse::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

/// How much of what makes an image its readers compute.
enum class Extent : uint8_t {
  with_all_finishes,  ///< What finishes its statistics for others, too.
  with_finish,
  with_movement,
  elementwise
};

/// What taking an image in changes.
struct Gain {
  int64_t bytes = 0;  ///< Moved less.
  int kernels = 0;    ///< Launched less.
  double saved = 0;   ///< Seconds that the bytes take.
  double price = 0;   ///< Seconds that the readers take longer.

  double net() const { return saved - price; }
  bool is_any() const { return bytes > 0 || kernels > 0; }
  /// Whether it is expected to be faster.
  bool is_worth_it() const { return is_any() && saved > kLeastGain * price; }
  std::string text() const {
    return fmt::format("{} bytes and {} kernels less, {:.1f} us spared for {:.1f} us", bytes, kernels, saved * 1e6,
                       price * 1e6);
  }
};

bool is_streamed(const Node& node, size_t operand) { return std::ranges::count(streamed_operands(node), operand) > 0; }

/// Whether nothing in the body but its contraction's streamed operands, and sums over the pixels of those, reads what
/// is computed for them.
bool stands_alone(const Graph& body) {
  std::vector<bool> computed(static_cast<size_t>(body.size()), false);
  std::vector<bool> streamed = computed;
  for (int id = body.size() - 1; id >= 0; --id) {
    const Node& node = body.node(id);
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const Value v = node.operands[i];
      if (body.node(v).op == ir::Op::input || is_free(body, body.node(v))) continue;
      if (is_streamed(node, i)) streamed[static_cast<size_t>(v.node)] = true;
      if (computed[static_cast<size_t>(id)] || is_streamed(node, i)) computed[static_cast<size_t>(v.node)] = true;
    }
  }
  const auto is_computed = [&](Value v) { return computed[static_cast<size_t>(v.node)]; };
  for (int id = 0; id < body.size(); ++id) {
    const Node& node = body.node(id);
    // What is free is a copy of its reader's own.
    if (computed[static_cast<size_t>(id)] || is_free(body, node)) continue;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const Value v = before_widening(body, node.operands[i]);
      if (sums_pixels(body, node) && streamed[static_cast<size_t>(v.node)]) continue;
      if (!is_streamed(node, i) && is_computed(v)) return false;
    }
  }
  // What is finished before is stored for others.
  const auto is_image = [&](Value v) { return body.type(v).shape.size() == 4; };
  return std::ranges::none_of(body.outputs(),
                              [&](const ir::NamedValue& n) { return is_image(n.value) && is_computed(n.value); });
}

class PrologueGrower {
 public:
  PrologueGrower(Units& units, PassContext& context, const FusionSettings& settings, FusionReport& report)
      : units_(units),
        graph_(units.graph()),
        device_(context.device),
        fuel_(context.fuel),
        settings_(settings),
        report_(report) {}

  void run() {
    for (int id = 0; id < graph_.size(); ++id) {
      if (units_.owner(id) >= 0) consider({id, 0});
    }
  }

 private:
  /// Who computes the image, and of what.
  struct Plan {
    std::vector<int> nodes = {};
    std::vector<int> takers;  ///< Units that compute it on the way in.
    std::vector<int> others;  ///< Units that read it from memory.
    std::vector<int> loops;   ///< Units that read it element by element, and put it together themselves.
    int host = -1;            ///< The loop that makes it for those.
    std::vector<int> made;    ///< What finishes the image's statistics, and sums over it, that a taker makes for all.
    int finisher = -1;        ///< That taker.
    std::string refusal;      ///< Why it cannot be; empty where it can.
  };

  void consider(Value image) {
    const Node& node = graph_.node(image);
    if (!is_pointwise(graph_, node) && !keeps_neighbours(node)) return;
    if (units_.unit(units_.owner(image.node)).whole || units_.readers(image) == nullptr) return;
    const Readers readers = *units_.readers(image);
    if (std::ranges::none_of(readers.heroes, [&](int u) { return streams(u, image); })) return;

    Plan plan = plan_for(image, readers);
    if (std::optional<Plan> late = plan_with_late_readers(image, plan)) plan = std::move(*late);
    if (plan.refusal.empty()) find_finisher(image, plan);
    const std::string site = site_of(plan.nodes, image, readers.heroes);
    const int64_t batch = graph_.type(image).shape[0];
    const Gain gain = weigh(image, plan);
    const std::string reason = plan.refusal.empty() ? unwanted(site, batch, gain) : plan.refusal;
    if (plan.refusal.empty() && gain.is_any()) {
      report_.prologues.push_back({site, batch, gain.saved, gain.price, reason.empty(), gain.is_worth_it()});
    }
    if (reason.empty() && !fuel_.spend()) return;
    std::string line = fmt::format("{} %{} {} in the prologues of {}", reason.empty() ? "computed" : "refused",
                                   image.node, ir::to_string(node.op), listed(plan.takers));
    for (const int u : plan.loops) line += fmt::format(", in the fusion of %{}", units_.unit(u).lead);
    if (plan.host >= 0) {
      line += fmt::format(", and for {} in the fusion of %{}", listed(plan.others), units_.unit(plan.host).lead);
    }
    if (plan.finisher >= 0) line += fmt::format(", statistics in that of {}", listed({plan.finisher}));
    line += fmt::format(": {}{}; site {}", gain.text(), reason.empty() ? "" : ": " + reason, site);
    report_.lines.push_back(std::move(line));
    if (!reason.empty()) return;
    for (const int u : plan.takers) units_.recompute(u, plan.nodes);
    for (const int u : plan.loops) units_.recompute(u, plan.nodes);
    if (plan.host >= 0) units_.hand_over(image.node, plan.nodes, plan.host, plan.others);
    for (const int id : plan.made) {
      units_.hand_over(id, made_with(image, plan, plan.made), plan.finisher, readers_of_made(plan));
    }
    units_.find_needed();
  }

  /// All readers compute it; else those that can, where a loop that has what it is made of makes it for the others.
  Plan plan_for(Value image, const Readers& readers) const {
    Plan plan;
    plan.nodes = made_by(image, Extent::elementwise);
    plan.takers = readers.heroes;
    plan.loops = loops_of(readers);
    plan.refusal = other_reader(image, readers, plan.loops);
    if (!plan.refusal.empty()) return plan;
    for (const Extent extent : {Extent::with_finish, Extent::with_movement, Extent::elementwise}) {
      plan.nodes = made_by(image, extent);
      plan.takers.clear(), plan.others.clear();
      plan.refusal.clear();
      for (const int u : readers.heroes) {
        const std::string reason = refusal(u, image, plan.nodes);
        (reason.empty() ? plan.takers : plan.others).push_back(u);
        if (plan.refusal.empty()) plan.refusal = reason;
      }
      if (plan.others.empty()) return plan;
    }
    if (!plan.takers.empty()) plan.host = find_host(image, plan.nodes, plan.others);
    if (plan.host >= 0) {
      plan.refusal.clear();
    } else {
      if (!plan.takers.empty()) plan.refusal += fmt::format(", and no loop makes it for {}", listed(plan.others));
      plan.takers = readers.heroes;
    }
    return plan;
  }

  /// Where all readers can compute the image, the first alone may be better: a loop makes it for those that come later.
  std::optional<Plan> plan_with_late_readers(Value image, const Plan& all) const {
    const bool is_chosen = settings_.prologues != Prologues::always && all.refusal.empty() && all.host < 0;
    if (!is_chosen || all.takers.size() < 2) return std::nullopt;
    Plan late = all;
    const auto lead = [&](int u) { return units_.unit(u).lead; };
    std::ranges::sort(late.takers, {}, lead);
    late.others.assign(late.takers.begin() + 1, late.takers.end());
    late.takers.resize(1);
    late.host = find_host(image, late.nodes, late.others);
    if (late.host < 0 || weigh(image, late).net() <= weigh(image, all).net()) return std::nullopt;
    return late;
  }

  /// Where not all takers can finish the statistics that they read, or others need sums over the image, the first taker
  /// that can makes those, and stores them.
  void find_finisher(Value image, Plan& plan) const {
    const int owner = units_.owner(image.node);
    std::set<int> finished, beside;  // by the owner, or by units of their own
    for (const Value v : units_.externals(plan.nodes)) {
      const bool is_small = graph_.type(v).shape.size() < graph_.type(image).shape.size();
      const bool is_alone_finish = graph_.node(v).op == ir::Op::group_finish && is_alone(v.node);
      if (is_small && units_.owner(v.node) == owner) finished.insert(v.node);
      if (is_small && is_alone_finish) beside.insert(v.node);
    }
    std::set<int> sums, rest;  // that the owner makes for others
    for (const int id : units_.body(owner)) {
      if (units_.owner(id) != owner || id == image.node || !is_needed(id) || finished.contains(id)) continue;
      const bool sums_image =
          sums_pixels(graph_, graph_.node(id)) && before_widening(graph_, graph_.node(id).operands[0]) == image;
      (sums_image ? sums : rest).insert(id);
    }
    const auto with = [](std::set<int> all, const std::set<int>& more) {
      all.insert(more.begin(), more.end());
      return all;
    };
    const std::set<int> own = with(finished, sums);
    for (const std::set<int>& made : {with(own, beside), own, with(finished, beside), finished}) {
      std::set<int> kept = rest;
      std::ranges::copy_if(sums, std::inserter(kept, kept.end()), [&](int id) { return !made.contains(id); });
      const std::vector<int> stays = units_.closure(owner, {kept.begin(), kept.end()});
      const auto is_made = [&](int id) { return made.contains(id); };
      if (made.empty() || std::ranges::any_of(stays, is_made)) continue;
      plan.made = {made.begin(), made.end()};
      for (const int u : plan.takers) {
        plan.finisher = u;
        if (can_make(image, plan)) return;
      }
    }
    plan.made.clear(), plan.finisher = -1;
    // A loop over rows alone has none of the image's blocks.
    const auto is_of_rows = [&](int id) { return graph_.node(id).op == ir::Op::reshape; };
    if (std::ranges::any_of(finished, is_of_rows)) plan.refusal = "no kernel of its readers finishes its statistics";
  }
  bool is_needed(int id) const {
    for (int r = 0; r < static_cast<int>(graph_.node(id).types.size()); ++r) {
      if (units_.needed({id, r})) return true;
    }
    return false;
  }
  /// Whether the finisher's kernel makes what it is to make, and needs nothing for it that comes after that.
  bool can_make(Value image, const Plan& plan) const {
    const std::vector<int> nodes = made_with(image, plan, plan.made), readers = readers_of_made(plan);
    const auto waits = [&](Value v) { return units_.needs_any(units_.owner(v.node), readers); };
    const std::vector<Value> reads = units_.externals(body_with(plan.finisher, nodes));
    return std::ranges::none_of(reads, waits) && refusal(plan.finisher, image, nodes, plan.made).empty();
  }
  /// The nodes that make the image, and those of what is made beside it.
  std::vector<int> made_with(Value image, const Plan& plan, const std::vector<int>& made) const {
    std::set<int> nodes(plan.nodes.begin(), plan.nodes.end());
    nodes.insert(made.begin(), made.end());
    std::vector<int> small;  // What it is finished of.
    for (const int id : made_by(image, Extent::with_all_finishes)) {
      const bool is_stored = graph_.node(id).op == ir::Op::group_finish && std::ranges::count(made, id) == 0;
      if (!is_stored && graph_.type({id, 0}).shape.size() < graph_.type(image).shape.size()) small.push_back(id);
    }
    const auto is_finished = [&](int id) { return std::ranges::binary_search(small, id); };
    if (std::ranges::any_of(made, is_finished)) nodes.insert(small.begin(), small.end());
    return {nodes.begin(), nodes.end()};
  }
  /// Units that will read what the finisher stores.
  std::vector<int> readers_of_made(const Plan& plan) const {
    std::set<int> found(plan.takers.begin(), plan.takers.end());
    if (plan.host >= 0) found.insert(plan.host);
    for (const int id : plan.made) {
      for (const int u : units_.reading(id)) found.insert(u);
    }
    found.erase(plan.finisher);
    return {found.begin(), found.end()};
  }

  /// A loop over the image's shape that reads what the image is made of, all but what is small, and needs none of the
  /// readers; the one nearest to them. -1 where there is none.
  int find_host(Value image, const std::vector<int>& nodes, const std::vector<int>& readers) const {
    const int owner = units_.owner(image.node);
    if (!is_pointwise(graph_, graph_.node(image)) || !units_.unit(owner).fusible) return -1;
    const auto distance = [&](int u) { return std::abs(units_.unit(u).lead - units_.unit(readers[0]).lead); };
    int best = -1;
    for (int u = 0; u < units_.size(); ++u) {
      const Unit& unit = units_.unit(u);
      if (u == owner || !unit.fusible || unit.whole || units_.body(u).empty()) continue;
      if (unit.shape != graph_.type(image).shape || (best >= 0 && distance(u) >= distance(best))) continue;
      const std::vector<Value> reads = units_.externals(units_.body(u));
      const auto has = [&](Value v) { return graph_.type(v).shape.size() <= 2 || std::ranges::count(reads, v) > 0; };
      const std::vector<int> both = body_with(u, nodes);
      if (!std::ranges::all_of(units_.externals(nodes), has) || !is_small_enough(both)) continue;
      const auto waits = [&](Value v) { return units_.needs_any(units_.owner(v.node), {u}); };
      if (!units_.needs_any(u, readers) && std::ranges::none_of(units_.externals(nodes), waits)) best = u;
    }
    return best;
  }

  /// The node of the unit's body whose streamed operands may be computed on the way; -1 where there is none.
  int contraction_of(int u) const {
    for (const int id : units_.unit(u).owned) {
      if (!streamed_operands(graph_.node(id)).empty()) return id;
    }
    return -1;
  }
  bool streams(int u, Value image) const {
    const int id = contraction_of(u);
    if (id < 0) return false;
    const Node& node = graph_.node(id);
    return std::ranges::any_of(streamed_operands(node), [&](size_t i) { return node.operands[i] == image; });
  }

  static std::vector<int> loops_of(const Readers& readers) {
    std::vector<int> loops = readers.fusible;
    loops.insert(loops.end(), readers.repeating.begin(), readers.repeating.end());
    return loops;
  }
  /// Why others than contractions must have the image in memory; empty where there are none, or all put it together.
  std::string other_reader(Value image, const Readers& readers, const std::vector<int>& loops) const {
    if (readers.others) return "it is needed in memory";
    const std::vector<int> nodes = made_by(image, Extent::with_movement);
    const auto reads = std::ranges::find_if(loops, [&](int u) { return !puts_together(u, image, nodes); });
    return reads == loops.end() ? "" : fmt::format("the fusion of %{} reads it, too", units_.unit(*reads).lead);
  }
  /// Whether the loop may read what the image is put together of: on a GPU, where its kernel finds each part's place.
  bool puts_together(int u, Value image, const std::vector<int>& nodes) const {
    const Unit& unit = units_.unit(u);
    const auto moves = [&](int id) { return keeps_neighbours(graph_.node(id)); };
    return device_.kind == ir::DeviceSpec::Kind::cuda && unit.fusible && !unit.whole &&
           unit.shape == graph_.type(image).shape && std::ranges::all_of(nodes, moves) &&
           is_small_enough(body_with(u, nodes));
  }

  bool is_alone(int node) const { return units_.unit(units_.owner(node)).owned.size() == 1; }

  /// Whether the node is a unit of its own that finishes statistics which this loop alone reads, and makes nothing but
  /// the image of.
  bool finishes_for(int node, Value image) const {
    const int owner = units_.owner(image.node);
    if (graph_.node(node).op != ir::Op::group_finish || !is_alone(node)) return false;
    const auto reads_otherwise = [&](int result) {
      const Readers* readers = units_.readers({node, result});
      if (readers == nullptr) return false;
      const auto is_other = [&](int u) { return u != owner; };
      return readers->as_a_whole() || std::ranges::any_of(readers->fusible, is_other) ||
             std::ranges::any_of(readers->repeating, is_other);
    };
    const auto is_needed_too = [&](int id) { return id != image.node && units_.needed({id, 0}); };
    return !reads_otherwise(0) && !reads_otherwise(1) && std::ranges::none_of(units_.unit(owner).owned, is_needed_too);
  }

  /// The nodes that make the image, of those that its own unit holds, and what finishes statistics for it alone.
  std::vector<int> made_by(Value image, Extent extent) const {
    const auto joins = [&](const Node& node) {
      if (is_pointwise(graph_, node) || is_free(graph_, node) || node.op == ir::Op::slice) return true;
      if (keeps_neighbours(node)) return extent != Extent::elementwise;
      if (extent == Extent::with_all_finishes && (node.op == ir::Op::reshape || is_row_reduction(graph_, node)))
        return true;
      return node.op == ir::Op::group_finish && extent <= Extent::with_finish;
    };
    const auto is_finished_beside = [&](int id) {
      if (extent != Extent::with_all_finishes) return finishes_for(id, image);
      return graph_.node(id).op == ir::Op::group_finish && is_alone(id);
    };
    const Unit& from = units_.unit(units_.owner(image.node));
    std::set<int> found = {image.node};
    // Largest first: operands have smaller numbers.
    for (auto it = found.rbegin(); it != found.rend(); ++it) {
      for (Value v : graph_.node(*it).operands) {
        while (!from.holds(v.node) && is_free(graph_, graph_.node(v)) && !graph_.node(v).operands.empty()) {
          v = graph_.node(v).operands[0];
        }
        const bool is_near = from.holds(v.node) || is_finished_beside(v.node);
        if (is_near && joins(graph_.node(v))) found.insert(v.node);
      }
    }
    return {found.begin(), found.end()};
  }

  std::vector<int> body_with(int u, const std::vector<int>& nodes) const {
    std::vector<int> both;
    std::ranges::set_union(units_.body(u), nodes, std::back_inserter(both));
    return both;
  }

  bool is_small_enough(const std::vector<int>& body) const {
    return std::ssize(body) <= kMostBodyNodes && std::ssize(units_.externals(body)) <= kMostOperands;
  }

  /// Why the unit cannot compute the image, and make what else it is to; empty where it can.
  std::string refusal(int u, Value image, const std::vector<int>& nodes, const std::vector<int>& made = {}) const {
    if (!streams(u, image)) return fmt::format("%{} reads it otherwise", units_.unit(u).lead);
    const std::vector<int> both = body_with(u, nodes);
    if (!is_small_enough(both)) return fmt::format("more than {} ops or {} operands", kMostBodyNodes, kMostOperands);
    const Graph body = body_of(units_, u, both, made);
    if (!stands_alone(body)) return fmt::format("the epilogue of %{} computes it, too", units_.unit(u).lead);
    return settings_.prologue_limits(body);
  }

  /// Bytes of what a body of these nodes reads, and of those that it makes for others: of images, for what is repeated
  /// over them is small, and grows otherwise with the batch.
  int64_t bytes_moved(int u, const std::vector<int>& nodes, const std::set<Value>& results, size_t rank) const {
    int64_t bytes = 0;
    const auto add = [&](const ir::Type& type) { bytes += type.shape.size() < rank ? 0 : type.bytes(); };
    for (const Value v : units_.externals(nodes)) add(graph_.type(v));
    for (const Value v : results) {
      if (units_.owner(v.node) == u) add(graph_.type(v));
    }
    return bytes;
  }

  Gain weigh(Value image, const Plan& plan) const {
    const int owner = units_.owner(image.node);
    std::set<Value> before, after;
    for (const int id : units_.body(owner)) {
      for (int r = 0; r < static_cast<int>(graph_.node(id).types.size()); ++r) {
        if (units_.owner(id) == owner && units_.needed({id, r})) before.insert({id, r});
      }
    }
    after = before;
    after.erase(image);
    Gain gain;
    const size_t rank = graph_.type(image).shape.size();
    gain.bytes = bytes_moved(owner, units_.body(owner), before, rank);
    const auto adds = [&](int u) {
      const std::vector<int> both = body_with(u, plan.nodes);
      gain.bytes += bytes_moved(u, units_.body(u), {}, rank) - bytes_moved(u, both, {}, rank);
      for (const Value v : units_.externals(both)) {
        if (units_.owner(v.node) == owner && v != image) after.insert(v);
      }
    };
    for (const int u : plan.takers) adds(u), gain.price += price(u, image, plan.nodes);
    for (const int u : plan.loops) adds(u);
    if (plan.host >= 0) adds(plan.host);
    if (plan.host >= 0 && !is_written_again(image)) gain.bytes -= graph_.type(image).bytes();
    std::erase_if(after, [&](Value v) { return std::ranges::count(plan.made, v.node) > 0; });
    std::vector<int> roots;
    for (const Value v : after) roots.push_back(v.node);
    if (!roots.empty()) gain.bytes -= bytes_moved(owner, units_.closure(owner, roots), after, rank);
    gain.kernels = roots.empty() ? 1 : 0;
    // Units of their own that finish its statistics.
    const auto is_spared = [&](int id) { return !units_.unit(owner).holds(id); };
    gain.kernels += static_cast<int>(std::ranges::count_if(plan.nodes, is_spared));
    gain.kernels += static_cast<int>(std::ranges::count_if(plan.made, is_spared));
    if (device_.bandwidth > 0) gain.saved = static_cast<double>(gain.bytes) / (kCopyShare * device_.bandwidth);
    return gain;
  }

  /// Whether a host will write the image even where it is stored before: a GPU's step that is short of memory keeps no
  /// image for so long (rematerialize.h).
  bool is_written_again(Value image) const {
    if (device_.kind != ir::DeviceSpec::Kind::cuda) return false;
    const ir::Type& type = graph_.type(image);
    if (type.bytes() / type.shape[0] < kLeastImageBytes) return false;
    if (!is_short_of_memory_) {
      FusionReport unread;
      is_short_of_memory_ = peak_image_bytes(emit(units_, unread)) >= kLeastKeptBytes;
    }
    return *is_short_of_memory_;
  }

  /// Of one image: whole chunks of channels, and whole strips of pixels where it has rows of them.
  static int64_t transformed_elements(const ir::Shape& image) {
    const auto whole = [](int64_t count, int64_t of) { return (count + of - 1) / of * of; };
    const int64_t channels = whole(image.back(), kChunkChannels);
    if (image.size() == 4) return whole(image[1], ir::kStripHeight) * whole(image[2], ir::kStripWidth) * channels;
    return ir::element_count(image) / (image.front() * image.back()) * channels;
  }

  /// Seconds that a unit takes longer when it computes its image: the elements of each tile, once for each column of
  /// tiles, and in images that are small what nothing else hides. What only moves is copied as it would be otherwise.
  double price(int u, Value image, const std::vector<int>& nodes) const {
    if (contraction_of(u) < 0) return 0;
    const bool transforms = std::ranges::any_of(nodes, [&](int id) { return is_pointwise(graph_, graph_.node(id)); });
    const Node& node = graph_.node(contraction_of(u));
    const ir::Shape& result = node.types[0].shape;
    const bool meets_outputs = node.op == ir::Op::conv_wgrad && node.operands[0] == image;
    const int64_t channels = meets_outputs ? result.front() : result.back();
    const ir::Shape& shape = graph_.type(image).shape;
    const int64_t images = shape.front(), pixels = ir::element_count(shape) / (images * shape.back());
    double seconds = transforms ? static_cast<double>(transformed_elements(shape)) * kTransformSeconds : 0;
    if (pixels < kHidingPixels) seconds += kFirstTileSeconds;
    return static_cast<double>(images * transforms_of(channels)) * seconds / static_cast<double>(device_.processors);
  }

  /// Why the image is stored although its readers can compute it; empty where they do.
  std::string unwanted(const std::string& site, int64_t batch, const Gain& gain) const {
    if (const bool* known = settings_.choices.prologue(site, batch)) return *known ? "" : "a recorded choice";
    if (!gain.is_any()) return "it saves nothing";
    if (settings_.prologues == Prologues::always) return {};
    if (!settings_.estimates) return "no choice is recorded";
    if (gain.is_worth_it()) return {};
    return gain.net() > 0 ? "too little to be sure of" : "it would take longer";
  }

  /// What is computed, of what, and for which contractions; all of one image.
  std::string site_of(const std::vector<int>& nodes, Value image, const std::vector<int>& heroes) const {
    const auto of_one = [](ir::Type type) {
      if (!type.shape.empty()) type.shape.erase(type.shape.begin());
      return ir::to_string(type);
    };
    std::vector<std::string_view> ops;
    for (const int id : nodes) {
      // What another unit does would be done where the image is stored, too.
      if (units_.unit(units_.owner(image.node)).holds(id)) ops.push_back(ir::to_string(graph_.node(id).op));
    }
    const ir::Type& made = graph_.type(image);
    std::string site = fmt::format("{}", fmt::join(ops, "_"));
    for (const Value v : units_.externals(nodes)) {
      if (graph_.type(v).shape.size() >= made.shape.size()) site += " " + of_one(graph_.type(v));
    }
    site += " -> " + of_one(made);
    for (const int u : heroes) {
      const int id = contraction_of(u);
      if (id < 0) continue;
      const Node& node = graph_.node(id);
      // Its filter says how often an element is read, and how many columns of tiles there are.
      const bool is_wgrad = node.op == ir::Op::conv_wgrad;
      site += fmt::format(", {} {}", ir::to_string(node.op),
                          ir::to_string(is_wgrad ? node.types[0] : graph_.type(node.operands[1])));
    }
    return site;
  }

  std::string listed(const std::vector<int>& heroes) const {
    std::vector<std::string> names;
    for (const int u : heroes) {
      const int id = std::max(contraction_of(u), units_.unit(u).lead);
      names.push_back(fmt::format("%{} {}", id, ir::to_string(graph_.node(id).op)));
    }
    return fmt::format("{}", fmt::join(names, ", "));
  }

  Units& units_;
  const Graph& graph_;
  const ir::DeviceSpec& device_;
  Fuel& fuel_;
  const FusionSettings& settings_;
  FusionReport& report_;
  mutable std::optional<bool> is_short_of_memory_;  // As it is when first asked.
};

}  // namespace

void join_prologues(Units& units, PassContext& context, const FusionSettings& settings, FusionReport& report) {
  units.find_needed();
  if (settings.prologues == Prologues::never || !settings.prologue_limits) return;
  PrologueGrower(units, context, settings, report).run();
}

}  // namespace difuse::passes
