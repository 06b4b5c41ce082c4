#include "passes/precision.h"

#include <algorithm>
#include <map>
#include <set>

#include "ir/builder.h"
#include "ir/op.h"
#include "passes/rewrite.h"
#include "passes/rounding_points.h"

namespace difuse::passes {
namespace {

using ir::DType;
using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Value;

class Rounder {
 public:
  Rounder(const Graph& graph, Fuel& fuel, Precision precision)
      : from_(graph),
        fuel_(fuel),
        precision_(precision),
        points_(graph, precision == Precision::bf16),
        to_(graph.name()),
        build_(to_),
        granted_(static_cast<size_t>(graph.size())) {}

  Graph run() {
    const std::vector<bool> live = from_.live();
    for (int id = 0; id < from_.size(); ++id) {
      if (live[static_cast<size_t>(id)] && multiplies_f32(id) && fuel_.spend()) contractions_.insert(id);
    }
    choose_vectors();
    for (int id = 0; id < from_.size(); ++id) {
      const Op op = from_.node(id).op;
      if (live[static_cast<size_t>(id)] || op == Op::input || op == Op::state) copy(id);
    }
    for (const ir::NamedValue& n : from_.outputs()) to_.set_output(n.name, exact(n.value));
    for (const ir::NamedValue& n : from_.updates()) to_.set_update(n.name, exact(n.value));
    return std::move(to_);
  }

 private:
  bool multiplies_f32(int id) const {
    const std::vector<size_t> operands = multiplied_operands(from_.node(id));
    return !operands.empty() && std::ranges::all_of(operands, [&](size_t i) {
      return from_.type(from_.node(id).operands[i]).dtype == DType::f32;
    });
  }

  /// What is rounded instead of v, before the movement that makes v; empty where that movement leaves some of it out.
  std::vector<Value> before_movement(Value v) const {
    const Node& node = from_.node(v);
    if (!only_moves(node)) return {};
    std::vector<Value> moved = moved_operands(node);
    int64_t elements = 0;
    for (const Value operand : moved) elements += from_.type(operand).elements();
    if (elements > from_.type(v).elements()) moved.clear();
    return moved;
  }

  // The flat vectors that are rounded whole.

  void choose_vectors() {
    std::map<Value, std::set<Value>> views;  // by vector
    for (const int id : contractions_) {
      for (const size_t i : multiplied_operands(from_.node(id))) find_views(from_.node(id).operands[i], views);
    }
    for (const auto& [vector, parts] : views) {
      int64_t elements = 0;
      for (const Value part : parts) elements += from_.type(part).elements();
      if (parts.size() > 1 && 2 * elements >= from_.type(vector).elements() && fuel_.spend()) vectors_.insert(vector);
    }
  }

  void find_views(Value v, std::map<Value, std::set<Value>>& views) const {
    if (from_.node(v).op == Op::view) views[from_.node(v).operands[0]].insert(v);
    for (const Value operand : before_movement(v)) find_views(operand, views);
  }

  // Forms of one value of the old graph in the new.

  /// Whether the value is rounded for all who read it.
  bool is_rounded(Value v) {
    const Node& node = from_.node(v);
    if (only_moves(node) && from_.type(v).dtype == DType::f32) {
      return std::ranges::all_of(moved_operands(node), [&](Value operand) { return is_rounded(operand); });
    }
    if (!points_.has(v)) return false;
    std::optional<bool>& granted = granted_[static_cast<size_t>(v.node)];
    if (!granted) granted = fuel_.spend();
    return *granted;
  }

  /// With every bit.
  Value exact(Value v) {
    const auto found = exact_.find(v);
    if (found != exact_.end()) return found->second;
    // A movement that was made of rounded values alone.
    return exact_[v] = move(v, [&](Value operand) { return exact(operand); });
  }

  /// What an op other than a contraction reads, in the value's own dtype.
  Value seen(Value v) {
    if (!is_rounded(v)) return exact(v);
    return build_.cast(narrow(v), DType::f32);
  }

  /// What a contraction reads.
  Value narrow(Value v) {
    const auto found = narrow_.find(v);
    return found != narrow_.end() ? found->second : narrow_[v] = make_narrow(v);
  }

  Value make_narrow(Value v) {
    const Node& node = from_.node(v);
    const bool moves = only_moves(node) && (is_rounded(v) || !before_movement(v).empty());
    if (moves) return move(v, [&](Value operand) { return narrow(operand); });
    if (points_.has(v) && is_rounded(v)) return round(exact(v));
    if (node.op == Op::view && vectors_.contains(node.operands[0])) {
      return ir::copy_node(to_, node, {round(exact(node.operands[0]))})[0];
    }
    return round(seen(v));
  }

  template <class Form>
  Value move(Value v, const Form& form) {
    const Node& node = from_.node(v);
    const std::vector<Value> moved = moved_operands(node);
    std::vector<Value> operands;
    for (const Value operand : node.operands) {
      operands.push_back(std::ranges::count(moved, operand) ? form(operand) : seen(operand));
    }
    return ir::copy_node(to_, node, operands)[static_cast<size_t>(v.result)];
  }

  Value round(Value v) {
    const Node& node = to_.node(v);
    if (precision_ == Precision::tf32) return node.op == Op::round_tf32 ? v : build_.round_tf32(v);
    // A cast back loses nothing, so that what it was cast from is the rounded value.
    const bool was_bf16 = node.op == Op::cast && build_.type(node.operands[0]).dtype == DType::bf16;
    return was_bf16 ? node.operands[0] : build_.cast(v, DType::bf16);
  }

  /// Whether the op itself rounds to the precision.
  bool rounds(const Node& node) const {
    if (precision_ == Precision::tf32) return node.op == Op::round_tf32;
    return node.op == Op::cast && node.types[0].dtype == DType::bf16;
  }

  void copy(int id) {
    const Node& node = from_.node(id);
    if (only_moves(node) && is_rounded({id, 0})) {
      narrow({id, 0});
      return;
    }
    if (rounds(node) && is_rounded(node.operands[0])) {
      exact_[{id, 0}] = narrow(node.operands[0]);
      return;
    }
    const std::vector<size_t> multiplied =
        contractions_.contains(id) ? multiplied_operands(node) : std::vector<size_t>();
    std::vector<Value> operands;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      operands.push_back(std::ranges::count(multiplied, i) ? narrow(node.operands[i]) : seen(node.operands[i]));
    }
    const std::vector<Value> results = ir::copy_node(to_, node, operands);
    for (int r = 0; r < static_cast<int>(results.size()); ++r) exact_[{id, r}] = results[static_cast<size_t>(r)];
  }

  const Graph& from_;
  Fuel& fuel_;
  const Precision precision_;
  const RoundingPoints points_;
  Graph to_;
  ir::Builder build_;
  std::set<int> contractions_;  ///< Whose operands are rounded.
  std::set<Value> vectors_;
  std::vector<std::optional<bool>> granted_;  ///< By node: whether there was fuel to round it.
  std::map<Value, Value> exact_, narrow_;
};

bool has_fusion(const Graph& graph) {
  for (int id = 0; id < graph.size(); ++id) {
    if (graph.node(id).op == Op::fusion) return true;
  }
  return false;
}

}  // namespace

std::string_view to_string(Precision precision) {
  switch (precision) {
    case Precision::tf32:
      return "tf32";
    case Precision::bf16:
      return "bf16";
    case Precision::f32:
      break;
  }
  return "f32";
}

std::optional<Precision> parse_precision(std::string_view text) {
  for (const Precision p : {Precision::f32, Precision::tf32, Precision::bf16}) {
    if (to_string(p) == text) return p;
  }
  return std::nullopt;
}

PassResult set_precision(const Graph& graph, PassContext& context, Precision precision) {
  if (precision == Precision::f32 || has_fusion(graph)) return {graph, false};
  PassResult result = remove_dead_code(Rounder(graph, context.fuel, precision).run(), context);
  result.changed = !same_graph(graph, result.graph);
  return result;
}

}  // namespace difuse::passes
