#include "passes/fusion/epilogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "ir/op.h"
#include "passes/fusion/cost.h"
#include "passes/fusion/traits.h"

namespace difuse::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Shape;
using ir::Value;

class Epilogues {
 public:
  Epilogues(const Graph& graph, const ir::DeviceSpec& device, Partition& partition, FusionReport& report)
      : graph_(graph),
        joins_launches_(device.kind == ir::DeviceSpec::Kind::cuda),
        partition_(partition),
        report_(report),
        whole_(static_cast<size_t>(graph.size()), false) {
    for (int id = 0; id < graph.size(); ++id) whole_[static_cast<size_t>(id)] = is_whole(graph.node(id));
  }

  std::vector<bool> grow_all() {
    for (int id = 0; id < graph_.size(); ++id) {
      if (partition_.live(id) && is_whole(graph_.node(id))) grow(id);
    }
    return std::move(whole_);
  }

 private:
  void grow(int hero) {
    std::map<int, std::string> refused;  // by reader; empty where it joined
    for (bool grew = true; grew;) {
      grew = false;
      const std::vector<int> members = partition_.members(hero);
      for (int member : members) {
        for (int reader : partition_.users(member)) {
          if (partition_.unit_of(reader) == hero || !runs_over(reader, shape_of(hero))) continue;
          std::string& reason = refused[reader];
          reason = refusal(hero, reader);
          if (!reason.empty()) continue;
          partition_.merge(hero, partition_.unit_of(reader));
          grew = true;
        }
      }
    }
    for (const auto& [reader, reason] : refused) {
      if (reason.empty()) continue;
      report_.lines.push_back(fmt::format("refused %{} {} in the epilogue of %{} {}: {}", reader,
                                          ir::to_string(graph_.node(reader).op), hero,
                                          ir::to_string(graph_.node(hero).op), reason));
    }
  }

  /// Why the reader must not join the epilogue; empty where it may.
  std::string refusal(int hero, int reader) const {
    if (is_reduction(graph_.node(reader))) {
      if (!is_of_strips(graph_.node(reader))) return "it reduces more than a strip";
      if (!ir::has_trait(graph_.node(hero), ir::kContraction)) return "an average is not made in strips";
    }
    const int unit = partition_.unit_of(reader);
    if (whole_[static_cast<size_t>(unit)]) return fmt::format("that of %{} has it", unit);
    for (Value v : operands_from_outside(hero, reader)) {
      const Node& node = graph_.node(v);
      if (is_whole(node) && v.node > hero) return fmt::format("%{} {} comes later", v.node, ir::to_string(node.op));
      if (!is_kept(v)) return fmt::format("nobody else stores its operand %{} {}", v.node, ir::to_string(node.op));
    }
    if (adds_many_small_products(reader)) return "its products can be one launch";
    if (!saves(hero, reader)) return "it would be one more result to store";
    if (!fits(hero, reader)) {
      return fmt::format("more than {} ops or {} tensors", kMostEpilogueNodes, kMostEpilogueTensors);
    }
    const int between = partition_.between(hero, unit);
    if (between < 0) return {};
    return fmt::format("a path goes round by %{} {}", between, ir::to_string(graph_.node(between).op));
  }

  /// Equal launches are made one where none reads another's result (join/nodes.h).
  bool adds_many_small_products(int reader) const {
    constexpr int64_t kSmall = 1 << 18, kMany = 4;
    if (!joins_launches_ || !is_sum(reader) || graph_.node(reader).types[0].bytes() > kSmall) return false;
    int whole = reader;
    for (const std::vector<int>* users = &partition_.users(whole); users->size() == 1 && is_sum((*users)[0]);) {
      whole = (*users)[0];
      users = &partition_.users(whole);
    }
    return products_of(whole) >= kMany;
  }
  bool is_sum(int id) const { return graph_.node(id).op == ir::Op::add; }
  int64_t products_of(int id) const {
    if (ir::has_trait(graph_.node(id), ir::kContraction)) return 1;
    if (!is_sum(id)) return 0;
    int64_t products = 0;
    for (const Value v : graph_.node(id).operands) products += products_of(v.node);
    return products;
  }

  bool saves(int hero, int reader) const {
    if (is_reduction(graph_.node(reader))) return true;  // What it leaves is small.
    const bool alone = operands_from_outside(hero, reader).empty();
    if (alone && is_kept_or_made_into_kept(reader)) return true;
    const int64_t bytes = graph_.node(reader).types[0].bytes();
    return std::ranges::any_of(graph_.node(reader).operands, [&](Value operand) {
      const Value v = before_widening(graph_, operand);
      return partition_.unit_of(v.node) == hero && is_read_by_alone(v, reader) && bytes <= graph_.type(v).bytes();
    });
  }

  bool fits(int hero, int reader) const {
    std::set<Value> tensors;
    const auto add = [&](int id) {
      for (Value v : operands_from_outside(hero, id)) {
        if (graph_.type(v).shape == shape_of(hero)) tensors.insert(v);
      }
    };
    for (int member : partition_.members(hero)) {
      if (member != hero) add(member);
    }
    const size_t before = tensors.size();
    add(reader);
    return std::ssize(partition_.members(hero)) < kMostEpilogueNodes &&
           (tensors.size() == before || tensors.size() <= kMostEpilogueTensors);
  }

  /// What the node reads, element by element, that the hero's unit does not make.
  std::vector<Value> operands_from_outside(int hero, int id) const {
    std::vector<Value> result;
    for (Value operand : graph_.node(id).operands) {
      const Value v = before_widening(graph_, operand);
      if (partition_.unit_of(v.node) != hero && !is_free(graph_, graph_.node(v))) result.push_back(v);
    }
    return result;
  }

  const Shape& shape_of(int hero) const { return graph_.node(hero).types[0].shape; }

  bool runs_over(int id, const Shape& shape) const {
    const Node& node = graph_.node(id);
    return (is_pointwise(graph_, node) || is_reduction(node)) && iteration_shape(graph_, node) == shape;
  }

  /// Whether v is in memory however the graph is fused: no loop makes it, or someone reads it as a whole.
  bool is_kept(Value v) const {
    const Node& node = graph_.node(v);
    if (!is_loop(graph_, node) || whole_[static_cast<size_t>(partition_.unit_of(v.node))] || is_output(v)) return true;
    return std::ranges::any_of(partition_.users(v.node), [&](int user) {
      const Node& reader = graph_.node(user);
      return !is_loop(graph_, reader) || (reader.op != ir::Op::fusion && !runs_over(user, graph_.type(v).shape));
    });
  }

  /// Or the only one who reads it makes of it alone what is.
  bool is_kept_or_made_into_kept(int id) const {
    if (is_kept({id, 0})) return true;
    const std::vector<int>& users = partition_.users(id);
    if (users.size() != 1 || !is_pointwise(graph_, graph_.node(users[0]))) return false;
    const bool of_it_alone = std::ranges::all_of(graph_.node(users[0]).operands, [&](Value operand) {
      return before_widening(graph_, operand).node == id || is_free(graph_, graph_.node(operand));
    });
    return of_it_alone && is_kept_or_made_into_kept(users[0]);
  }

  bool is_output(Value v) const {
    const auto is_it = [v](const ir::NamedValue& n) { return n.value == v; };
    return std::ranges::any_of(graph_.outputs(), is_it) || std::ranges::any_of(graph_.updates(), is_it);
  }

  bool is_read_by_alone(Value v, int reader) const {
    return !is_output(v) && std::ranges::none_of(partition_.users(v.node),
                                                 [&](int user) { return user != reader && reads(graph_, user, v); });
  }

  const Graph& graph_;
  const bool joins_launches_;
  Partition& partition_;
  FusionReport& report_;
  std::vector<bool> whole_;
};

}  // namespace

std::vector<bool> grow_epilogues(const Graph& graph, const ir::DeviceSpec& device, Partition& partition,
                                 FusionReport& report) {
  return Epilogues(graph, device, partition, report).grow_all();
}

}  // namespace difuse::passes
