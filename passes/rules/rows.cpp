// Short rows: what is computed from a row, or for it, is brought to the shape in which the row is reduced, so that all
// of it can be one loop over rows.
#include <algorithm>

#include "passes/canonicalize.h"
#include "passes/fusion/cost.h"

namespace difuse::passes {
namespace {

using ir::Builder;
using ir::Node;
using ir::Op;
using ir::Shape;
using ir::Value;

constexpr int kMostMoved = 16;  ///< Elementwise ops in one rewrite.

bool is_reduce(const Node& node) { return node.op == Op::reduce_sum || node.op == Op::reduce_max; }

/// Whether the dimensions from `kept` on are a short row.
bool is_row(const Shape& shape, size_t kept) {
  if (kept == 0 || kept >= shape.size()) return false;
  return ir::element_count({shape.begin() + static_cast<std::ptrdiff_t>(kept), shape.end()}) <= kMostRowElements;
}

/// For each dimension of `from`, at which one of `to` the ones begin that it is split into; nothing where `to` is not
/// `from` with some dimensions split. One more stands at the end.
std::vector<size_t> split_dims(const Shape& from, const Shape& to) {
  std::vector<size_t> begins;
  size_t at = 0;
  for (const int64_t extent : from) {
    begins.push_back(at);
    int64_t product = 1;
    while (at < to.size() && (product < extent || (product == extent && to[at] == 1))) product *= to[at++];
    if (product != extent) return {};
  }
  begins.push_back(at);
  return at == to.size() ? begins : std::vector<size_t>{};
}

/// Elementwise ops on the way to a value, computed in another shape of as many elements.
class Reshaped {
 public:
  Reshaped(Builder& build, const Shape& shape) : build_(build), shape_(shape) {}

  Value of(Value v) {
    const Node node = build_.graph().node(v);
    if (node.types[0].shape == shape_) return v;
    if (node.op == Op::constant) {
      return build_.constant(node.as<ir::ConstantAttrs>().value, {node.types[0].dtype, shape_});
    }
    if (node.op == Op::reshape) return of(node.operands[0]);
    if (node.op == Op::broadcast) return broadcast(node, v);
    if (!ir::has_trait(node, ir::kElementwise) || moved_ == kMostMoved) return build_.reshape(v, shape_);
    ++moved_;
    std::vector<Value> operands;
    for (const Value operand : node.operands) operands.push_back(of(operand));
    return build_.graph().add(node.op, std::move(operands), node.attrs);
  }

 private:
  Value broadcast(const Node& node, Value v) {
    const std::vector<size_t> begins = split_dims(node.types[0].shape, shape_);
    if (begins.empty()) return build_.reshape(v, shape_);
    Shape from;
    std::vector<int64_t> dims;
    for (const int64_t d : node.as<ir::BroadcastAttrs>().dims) {
      for (size_t to = begins[static_cast<size_t>(d)]; to < begins[static_cast<size_t>(d) + 1]; ++to) {
        from.push_back(shape_[to]);
        dims.push_back(static_cast<int64_t>(to));
      }
    }
    return build_.broadcast(build_.reshape(node.operands[0], from), shape_, std::move(dims));
  }

  Builder& build_;
  const Shape shape_;
  int moved_ = 0;
};

/// reduce(reshape(f(a, b))) -> reduce(f(reshape(a), reshape(b))), where the reduction is over short rows.
Value reduce_reshaped(Builder& build, const Node& node) {
  const Node from = build.graph().node(node.operands[0]);
  const auto& axes = node.as<ir::ReduceAttrs>().axes;
  const Shape& shape = from.types[0].shape;
  const size_t kept = shape.size() - axes.size();
  if (from.op != Op::reshape || static_cast<size_t>(axes.front()) != kept || !is_row(shape, kept)) return {};
  if (!ir::has_trait(build.graph().node(from.operands[0]), ir::kElementwise)) return {};
  const Value moved = Reshaped(build, shape).of(from.operands[0]);
  return build.graph().add(node.op, {moved}, node.attrs);
}

/// Whether a row of `shape` is reduced on the way to v, which has an element for each row.
bool comes_from_row(Builder& build, Value v, const Shape& shape, int depth = 4) {
  const Node& node = build.graph().node(v);
  if (is_reduce(node)) return build.shape(node.operands[0]) == shape;
  return ir::has_trait(node, ir::kElementwise) && depth > 0 && std::ranges::any_of(node.operands, [&](Value operand) {
           return comes_from_row(build, operand, shape, depth - 1);
         });
}

/// broadcast(f(r, s)) -> f(broadcast(r), broadcast(s)), where it repeats over short rows what they were reduced to.
Value repeat_first(Builder& build, const Node& node) {
  const Node from = build.graph().node(node.operands[0]);
  const auto& attrs = node.as<ir::BroadcastAttrs>();
  const bool leading = !attrs.dims.empty() && attrs.dims.back() == std::ssize(attrs.dims) - 1;
  if (!ir::has_trait(from, ir::kElementwise) || !leading || !is_row(attrs.shape, attrs.dims.size())) return {};
  if (!comes_from_row(build, node.operands[0], attrs.shape)) return {};
  std::vector<Value> operands;
  for (const Value v : from.operands) operands.push_back(build.broadcast(v, attrs.shape, attrs.dims));
  return build.graph().add(from.op, std::move(operands), from.attrs);
}

}  // namespace

std::span<const Rule> row_rules() {
  static constexpr Rule kRules[] = {
      {"reduce_reshaped", Op::reduce_sum, reduce_reshaped},
      {"reduce_reshaped", Op::reduce_max, reduce_reshaped},
      {"repeat_first", Op::broadcast, repeat_first},
  };
  return kRules;
}

}  // namespace difuse::passes
