#include "ir/builder.h"

#include <numeric>

namespace difuse::ir {

Value Builder::input(std::string name, Type t) {
  return graph_.add(Op::input, {}, LeafAttrs{std::move(name), t.dtype, std::move(t.shape)});
}
Value Builder::state(std::string name, Type t) {
  return graph_.add(Op::state, {}, LeafAttrs{std::move(name), t.dtype, std::move(t.shape)});
}
Value Builder::constant(double value, Type t) {
  return graph_.add(Op::constant, {}, ConstantAttrs{value, t.dtype, std::move(t.shape)});
}
Value Builder::literal(std::vector<double> values, Type t) {
  return graph_.add(Op::literal, {}, LiteralAttrs{t.dtype, std::move(t.shape), std::move(values)});
}
Value Builder::cast(Value a, DType dtype) {
  return type(a).dtype == dtype ? a : graph_.add(Op::cast, {a}, CastAttrs{dtype});
}

Value Builder::rounded(Value a, DType dtype) { return type(a).dtype == dtype ? round_tf32(a) : cast(a, dtype); }

Value Builder::broadcast(Value a, Shape to, std::vector<int64_t> dims) {
  if (shape(a) == to) return a;
  return graph_.add(Op::broadcast, {a}, BroadcastAttrs{std::move(to), std::move(dims)});
}
Value Builder::broadcast_channels(Value a, const Shape& to) {
  return broadcast(a, to, {static_cast<int64_t>(to.size()) - 1});
}
Value Builder::broadcast_image_channels(Value a, const Shape& to) {
  return broadcast(a, to, {0, static_cast<int64_t>(to.size()) - 1});
}
Value Builder::reshape(Value a, Shape to) {
  return shape(a) == to ? a : graph_.add(Op::reshape, {a}, ReshapeAttrs{std::move(to)});
}
Value Builder::transpose(Value a, std::vector<int64_t> perm) {
  return graph_.add(Op::transpose, {a}, TransposeAttrs{std::move(perm)});
}
Value Builder::concat(std::vector<Value> values, int64_t axis) {
  return values.size() == 1 ? values[0] : graph_.add(Op::concat, std::move(values), ConcatAttrs{axis});
}
Value Builder::slice(Value a, int64_t axis, int64_t begin, int64_t end) {
  if (begin == 0 && end == shape(a).at(static_cast<size_t>(axis))) return a;
  return graph_.add(Op::slice, {a}, SliceAttrs{axis, begin, end});
}
Value Builder::reverse(Value a, int64_t axis) { return graph_.add(Op::reverse, {a}, ReverseAttrs{axis}); }
Value Builder::pad(Value a, int64_t axis, int64_t before, int64_t after) {
  return before == 0 && after == 0 ? a : graph_.add(Op::pad, {a}, PadAttrs{axis, before, after});
}
Value Builder::gather(Value table, Value index) { return graph_.add(Op::gather, {table, index}); }
Value Builder::scatter_add(Value index, Value rows, int64_t count) {
  return graph_.add(Op::scatter_add, {index, rows}, ScatterAttrs{count});
}
Value Builder::upsample_nearest(Value a) { return graph_.add(Op::upsample_nearest, {a}); }
Value Builder::avg_pool(Value a) { return graph_.add(Op::avg_pool, {a}); }

Value Builder::pack(std::vector<Value> parts, std::vector<int64_t> offsets, int64_t size) {
  return graph_.add(Op::pack, std::move(parts), PackAttrs{size, std::move(offsets)});
}
Value Builder::view(Value flat, int64_t offset, Shape to) {
  return graph_.add(Op::view, {flat}, ViewAttrs{offset, std::move(to)});
}
Value Builder::repack(Value weights, WeightLayout layout) {
  return graph_.add(Op::repack, {weights}, RepackAttrs{layout});
}

Value Builder::reduce_sum(Value a, std::vector<int64_t> axes) {
  return axes.empty() ? a : graph_.add(Op::reduce_sum, {a}, ReduceAttrs{std::move(axes)});
}
Value Builder::reduce_max(Value a, std::vector<int64_t> axes) {
  return axes.empty() ? a : graph_.add(Op::reduce_max, {a}, ReduceAttrs{std::move(axes)});
}
Value Builder::sum_all(Value a) {
  std::vector<int64_t> axes(shape(a).size());
  std::iota(axes.begin(), axes.end(), 0);
  return reduce_sum(a, std::move(axes));
}
Value Builder::mean_all(Value a) { return mul(sum_all(a), 1.0 / static_cast<double>(type(a).elements())); }

Builder::Moments Builder::channel_moments(Value image) {
  const Value first = graph_.add(Op::channel_moments, {image});
  return {first, {first.node, 1}};
}
Builder::GroupStatistics Builder::group_finish(const std::vector<Moments>& moments, GroupFinishAttrs attrs) {
  std::vector<Value> operands;
  for (const Moments& m : moments) operands.insert(operands.end(), {m.mean, m.m2});
  const Value first = graph_.add(Op::group_finish, std::move(operands), attrs);
  return {first, {first.node, 1}};
}

Value Builder::matmul(Value a, Value b, bool transpose_a, bool transpose_b) {
  return graph_.add(Op::matmul, {a, b}, MatmulAttrs{transpose_a, transpose_b});
}
Value Builder::conv_fprop(Value image, Value weights, int64_t stride, int64_t pad) {
  return graph_.add(Op::conv_fprop, {image, weights}, ConvAttrs{stride, pad});
}
Value Builder::conv_dgrad(Value dy, Value weights, ConvDgradAttrs attrs) {
  return graph_.add(Op::conv_dgrad, {dy, weights}, attrs);
}
Value Builder::conv_wgrad(Value image, Value dy, ConvWgradAttrs attrs) {
  return graph_.add(Op::conv_wgrad, {image, dy}, attrs);
}
Builder::AttentionResult Builder::attention(Value qkv, AttentionAttrs attrs) {
  const Value first = graph_.add(Op::attention, {qkv}, attrs);
  return {first, {first.node, 1}};
}
Value Builder::attention_grad(Value qkv, Value out, Value lse, Value dout, AttentionAttrs attrs) {
  return graph_.add(Op::attention_grad, {qkv, out, lse, dout}, attrs);
}

Value Builder::random_normal(Value seed, Value index, Value step, int64_t stream, Shape to) {
  return graph_.add(Op::random_normal, {seed, index, step}, RandomAttrs{stream, std::move(to)});
}
Value Builder::random_uniform(Value seed, Value index, Value step, int64_t stream, Shape to) {
  return graph_.add(Op::random_uniform, {seed, index, step}, RandomAttrs{stream, std::move(to)});
}
Value Builder::random_int(Value seed, Value index, Value step, int64_t stream, Shape to, int64_t bound) {
  return graph_.add(Op::random_int, {seed, index, step}, RandomIntAttrs{stream, std::move(to), bound});
}

}  // namespace difuse::ir
