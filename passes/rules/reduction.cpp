// Sums move past what does not vary along their axes, so that they run over what is smaller or is summed anyway.
#include <algorithm>
#include <optional>

#include "passes/canonicalize.h"

namespace difuse::passes {
namespace {

using ir::Builder;
using ir::Node;
using ir::Op;
using ir::Shape;
using ir::Value;

const std::vector<int64_t>& axes_of(const Node& node) { return node.as<ir::ReduceAttrs>().axes; }

int64_t elements_along(const Shape& shape, const std::vector<int64_t>& axes) {
  int64_t count = 1;
  for (int64_t d : axes) count *= shape[static_cast<size_t>(d)];
  return count;
}

/// Where axis d of the summed tensor lies in the sum: the number of kept axes before it.
int64_t kept_position(int64_t d, const std::vector<int64_t>& axes) {
  return d - std::ranges::count_if(axes, [d](int64_t axis) { return axis < d; });
}

/// The sum of a constant is a constant.
Value sum_constant(Builder& build, const Node& node) {
  const Node& from = build.graph().node(node.operands[0]);
  if (from.op != Op::constant) return {};
  const double count = static_cast<double>(elements_along(from.types[0].shape, axes_of(node)));
  return build.constant(from.as<ir::ConstantAttrs>().value * count, node.types[0]);
}

/// reduce_sum(broadcast(s)): sums s along its own axes and multiplies by how often it is repeated along the others.
Value sum_broadcast(Builder& build, const Node& node) {
  const Node from = build.graph().node(node.operands[0]);
  if (from.op != Op::broadcast) return {};
  const auto& dims = from.as<ir::BroadcastAttrs>().dims;
  const auto& axes = axes_of(node);
  std::vector<int64_t> repeated, own, kept;
  std::ranges::copy_if(axes, std::back_inserter(repeated), [&](int64_t d) { return !std::ranges::count(dims, d); });
  for (size_t i = 0; i < dims.size(); ++i) {
    if (std::ranges::count(axes, dims[i])) {
      own.push_back(static_cast<int64_t>(i));
    } else {
      kept.push_back(kept_position(dims[i], axes));
    }
  }
  const Value sum = build.reduce_sum(from.operands[0], own);
  const double count = static_cast<double>(elements_along(from.types[0].shape, repeated));
  return build.broadcast(count == 1 ? sum : build.mul(sum, count), node.types[0].shape, kept);
}

Value sum_neg(Builder& build, const Node& node) {
  const Node& from = build.graph().node(node.operands[0]);
  return from.op == Op::neg ? build.neg(build.reduce_sum(from.operands[0], axes_of(node))) : Value{};
}

/// A factor that is the same along all summed axes, as it stands in the sum; invalid when it varies.
Value factor_of_sum(Builder& build, Value factor, const Node& sum) {
  const Node from = build.graph().node(factor);
  if (from.op == Op::constant) return build.constant(from.as<ir::ConstantAttrs>().value, sum.types[0]);
  if (from.op != Op::broadcast) return {};
  std::vector<int64_t> dims;
  for (int64_t d : from.as<ir::BroadcastAttrs>().dims) {
    if (std::ranges::count(axes_of(sum), d)) return {};
    dims.push_back(kept_position(d, axes_of(sum)));
  }
  return build.broadcast(from.operands[0], sum.types[0].shape, dims);
}

/// reduce_sum(a * s) -> reduce_sum(a) * s where s is the same along the summed axes.
Value sum_mul(Builder& build, const Node& node) {
  const Node from = build.graph().node(node.operands[0]);
  if (from.op != Op::mul) return {};
  for (size_t i : {1, 0}) {
    const Value factor = factor_of_sum(build, from.operands[i], node);
    if (factor.valid()) return build.mul(build.reduce_sum(from.operands[1 - i], axes_of(node)), factor);
  }
  return {};
}

}  // namespace

std::span<const Rule> reduction_rules() {
  static constexpr Rule kRules[] = {
      {"sum_constant", Op::reduce_sum, sum_constant},
      {"sum_broadcast", Op::reduce_sum, sum_broadcast},
      {"sum_neg", Op::reduce_sum, sum_neg},
      {"sum_mul", Op::reduce_sum, sum_mul},
  };
  return kRules;
}

}  // namespace difuse::passes
