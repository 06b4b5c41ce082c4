#include "passes/rematerialize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/op.h"
#include "passes/fusion/traits.h"
#include "passes/in_place.h"
#include "passes/late_copies.h"
#include "passes/lifetimes.h"

namespace difuse::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Shape;
using ir::Value;

/// What a fused loop runs over; empty where the node is none.
Shape loop_shape(const Graph& graph, const Node& node) {
  if (node.op != Op::fusion || !is_loop(graph, node)) return {};
  const Graph& body = body_of(node);
  for (int id = 0; id < body.size(); ++id) {
    if (is_whole(body.node(id))) return {};
  }
  return iteration_shape(body);
}

/// Of each image; of what holds none, of each row, which no batch changes either.
int64_t image_bytes(const ir::Type& type) {
  constexpr size_t kLeastRank = 3;
  return type.shape.size() < kLeastRank ? 0 : type.bytes() / type.shape[0];
}

struct Candidate {
  LateCopy copy;
  int from = 0, to = 0;  ///< At the nodes between these two the value need not be kept.
  int64_t bytes = 0;     ///< Of each image.

  bool spares(int node) const { return from < node && node < to; }
};

class Finder {
 public:
  Finder(const Graph& graph, const Lifetimes& lifetimes) : graph_(graph), lifetimes_(lifetimes), nothing_else_(graph) {
    for (int id = 0; id < graph.size(); ++id) shapes_.push_back(loop_shape(graph, graph.node(id)));
  }

  std::vector<Candidate> find(int64_t least_bytes) const {
    std::vector<Candidate> found;
    for (int id = 0; id < graph_.size(); ++id) {
      if (graph_.node(id).op != Op::fusion) continue;
      for (int r = 0; r < static_cast<int>(graph_.node(id).types.size()); ++r) {
        if (image_bytes(graph_.type({id, r})) < std::max<int64_t>(least_bytes, 1)) continue;
        auto candidate = across_longest_gap({id, r});
        if (candidate && choose_host(*candidate)) found.push_back(std::move(*candidate));
      }
    }
    return found;
  }

 private:
  /// The readers fall in two where most nodes lie between them.
  std::optional<Candidate> across_longest_gap(Value v) const {
    const std::vector<int>& readers = lifetimes_.readers(v);
    if (readers.size() < 2 || readers.back() == graph_.size()) return std::nullopt;
    Candidate candidate{.copy = {.value = v}, .to = lifetimes_.last_read(v), .bytes = image_bytes(graph_.type(v))};
    int longest = 0, until = 0;
    for (size_t i = 0; i + 1 < readers.size(); ++i) {
      until = std::max(until, lifetimes_.read_until(readers[i]));
      if (readers[i + 1] - until <= longest) continue;
      longest = readers[i + 1] - until;
      candidate.from = until;
      candidate.copy.readers.assign(readers.begin() + static_cast<int64_t>(i) + 1, readers.end());
    }
    if (longest == 0) return std::nullopt;
    return candidate;
  }

  /// The nearest to the first late reader. Whether there is one.
  bool choose_host(Candidate& candidate) const {
    LateCopy& copy = candidate.copy;
    const std::optional<Chain> chain = find_chain(graph_, copy.value);
    if (!chain || computed(body_of(graph_.node(copy.value)), *chain) > kMostRecomputedNodes) return false;
    const Shape& shape = graph_.type(copy.value).shape;
    const auto distance = [first = copy.readers.front()](int host) { return std::abs(host - first); };
    std::optional<LateCopy> best;
    for (int host = candidate.from + 1; host < graph_.size(); ++host) {
      if (shapes_[static_cast<size_t>(host)] != shape || (best && distance(host) >= distance(best->host))) continue;
      copy.host = host;
      if (fits(copy, *chain) && nothing_else_.is_possible(copy)) best = copy;
    }
    if (!best) return false;
    copy = std::move(*best);
    candidate.to = std::min(candidate.to + 1, copy.host);  // A reader that the host follows comes after it then.
    return true;
  }

  static int64_t computed(const Graph& body, const Chain& chain) {
    return std::ranges::count_if(chain.nodes, [&](int id) { return !is_free(body, body.node(id)); });
  }

  /// Whether the host reads what the value is made of, or may read it. Fills copy.operands.
  bool fits(LateCopy& copy, const Chain& chain) const {
    const Node& host = graph_.node(copy.host);
    copy.operands.clear();
    for (const auto& [inner, outer] : chain.sources) {
      if (std::ranges::find(host.operands, outer) != host.operands.end()) continue;
      if (!is_of_channels(outer)) return false;
      copy.operands.push_back(outer);
    }
    return body_of(host).size() + std::ssize(chain.nodes) <= kMostBodyNodes &&
           std::ssize(host.operands) + std::ssize(copy.operands) <= kMostOperands;
  }

  /// A number for each channel, perhaps of each image: what an image repeats for its pixels.
  bool is_of_channels(Value v) const { return graph_.type(v).shape.size() <= 2; }

  const Graph& graph_;
  const Lifetimes& lifetimes_;
  const LateCopies nothing_else_;
  std::vector<Shape> shapes_;  // by node: what its loop runs over
};

/// The candidates that are worth it, in the order of the decisions: those before the peak stops going down.
std::vector<Candidate> lower_peak(const Graph& graph, const LeastBytes& least_bytes) {
  const Lifetimes lifetimes(graph);
  std::vector<int64_t> live = lifetimes.live_bytes(image_bytes);
  if (*std::ranges::max_element(live) < least_bytes.kept) return {};
  std::vector<Candidate> left = Finder(graph, lifetimes).find(least_bytes.tensor), taken;
  LateCopies copies(graph);
  size_t useful = 0;
  for (int64_t least = *std::ranges::max_element(live);;) {
    const auto peak = static_cast<int>(std::ranges::max_element(live) - live.begin());
    if (live[static_cast<size_t>(peak)] < least) {
      least = live[static_cast<size_t>(peak)];
      useful = taken.size();
    }
    const auto spared = [peak](const Candidate& c) { return c.spares(peak) ? c.bytes : 0; };
    const auto best = std::ranges::max_element(left, {}, spared);
    if (best == left.end() || !best->spares(peak)) break;
    const Candidate candidate = std::move(*best);
    left.erase(best);
    if (!copies.is_possible(candidate.copy)) continue;  // Beside those that were taken.
    copies.add(candidate.copy);
    for (int t = candidate.from + 1; t < candidate.to; ++t) live[static_cast<size_t>(t)] -= candidate.bytes;
    taken.push_back(candidate);
  }
  taken.resize(useful);
  return taken;
}

}  // namespace

int64_t peak_image_bytes(const Graph& graph) {
  return graph.size() == 0 ? 0 : std::ranges::max(Lifetimes(graph).live_bytes(image_bytes));
}

PassResult rematerialize(const Graph& graph, PassContext& context, FusionReport* report, const LeastBytes& least) {
  if (context.device.kind != ir::DeviceSpec::Kind::cuda || graph.size() == 0) return {graph, false};
  LateCopies copies(graph);
  std::vector<std::string> lines;
  for (const auto& [copy, from, to, bytes] : lower_peak(graph, least)) {
    if (!context.fuel.spend()) break;
    copies.add(copy);
    lines.push_back(fmt::format("computed %{}.{} again in the fusion of %{}, of the fused graph: {} bytes less",
                                copy.value.node, copy.value.result, copy.host, graph.type(copy.value).bytes()));
  }
  if (lines.empty()) return {graph, false};
  Graph result = copies.emit();
  if (peak_image_bytes(result) >= peak_image_bytes(graph)) return {graph, false};
  if (report) report->lines.insert(report->lines.end(), lines.begin(), lines.end());
  return {std::move(result), true};
}

}  // namespace difuse::passes
