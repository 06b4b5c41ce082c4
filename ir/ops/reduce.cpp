// Sums and maxima over axes.
#include <algorithm>
#include <limits>

#include "ir/ops/rules.h"

namespace difuse::ir {
namespace {

std::vector<Type> infer_reduce(std::span<const Type> t, const Attrs& attrs) {
  const auto& axes = std::get<ReduceAttrs>(attrs).axes;
  require_f32(t);
  require(!axes.empty(), "no axis to reduce");
  Type result{t[0].dtype, {}};
  for (int64_t d = 0; d < t[0].rank(); ++d) {
    if (!std::ranges::count(axes, d)) result.shape.push_back(t[0].shape[static_cast<size_t>(d)]);
  }
  require(std::ranges::is_sorted(axes) && result.rank() + std::ssize(axes) == t[0].rank(),
          "axes [{}] must increase and lie inside {}", fmt::join(axes, ", "), to_string(t[0]));
  return {result};
}

std::vector<int64_t> kept_axes(const GradientContext& c, int rank) {
  std::vector<int64_t> kept;
  for (int64_t d = 0; d < rank; ++d) {
    if (!std::ranges::count(c.node().as<ReduceAttrs>().axes, d)) kept.push_back(d);
  }
  return kept;
}

/// Repeats a reduction's result over the operand's shape.
Value spread(GradientContext& c, Value reduced) {
  const Shape& shape = c.build().shape(c.operand(0));
  return c.build().broadcast(reduced, shape, kept_axes(c, static_cast<int>(shape.size())));
}

template <class Combine>
void reduce(const Node& node, const Tensor& in, Tensor& out, double start, const Combine& combine) {
  const Shape& shape = in.type.shape;
  Shape strides(shape.size(), 0);  // of the result, 0 along reduced axes
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    if (std::ranges::count(node.as<ReduceAttrs>().axes, static_cast<int64_t>(d))) continue;
    strides[d] = stride;
    stride *= shape[d];
  }
  std::ranges::fill(out.data, start);
  for (size_t i = 0; i < in.data.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), to = 0;
    for (size_t d = shape.size(); d-- > 0;) to += rest % shape[d] * strides[d], rest /= shape[d];
    combine(out.data[static_cast<size_t>(to)], in.data[i]);
  }
}

}  // namespace

OpRules rules_reduce_sum() {
  return {infer_reduce, [](GradientContext& c) { c.accumulate(c.operand(0), spread(c, c.grad(0))); },
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            reduce(node, *in[0], out[0], 0, [](double& sum, double x) { sum += x; });
          }};
}

OpRules rules_reduce_max() {
  return {infer_reduce,
          [](GradientContext& c) {  // elements that tie for the maximum share the gradient
            Builder& b = c.build();
            const Value is_max = b.equal(c.operand(0), spread(c, c.result(0)));
            const Value count = b.reduce_sum(is_max, c.node().as<ReduceAttrs>().axes);
            c.accumulate(c.operand(0), b.mul(is_max, spread(c, b.div(c.grad(0), count))));
          },
          [](const Node& node, std::span<const Tensor* const> in, std::span<Tensor> out) {
            reduce(node, *in[0], out[0], -std::numeric_limits<double>::infinity(),
                   [](double& best, double x) { best = x > best ? x : best; });
          }};
}

}  // namespace difuse::ir
