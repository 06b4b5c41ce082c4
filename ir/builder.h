// Writes graphs: one function per op, plus the few compositions that every model needs.
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"

namespace difuse::ir {

/// Appends to a graph it does not own. Every function throws Error when the operands do not fit (Graph::add).
class Builder {
 public:
  explicit Builder(Graph& graph) : graph_(graph) {}

  Graph& graph() { return graph_; }
  const Type& type(Value v) const { return graph_.type(v); }
  const Shape& shape(Value v) const { return graph_.type(v).shape; }

  Value input(std::string name, Type type);
  Value state(std::string name, Type type);
  Value constant(double value, Type type = {DType::f32, {}});
  Value literal(std::vector<double> values, Type type);
  Value zeros_like(Value v) { return constant(0, type(v)); }

  // Elementwise. The forms with a double make a constant of the other operand's type.
#define DIFUSE_UNARY(name) \
  Value name(Value a) { return graph_.add(Op::name, {a}); }
#define DIFUSE_BINARY(name)                                               \
  Value name(Value a, Value b) { return graph_.add(Op::name, {a, b}); }   \
  Value name(Value a, double b) { return name(a, constant(b, type(a))); } \
  Value name(double a, Value b) { return name(constant(a, type(b)), b); }
#include "ir/ops.def"
  Value select(Value condition, Value a, Value b) { return graph_.add(Op::select, {condition, a, b}); }
  Value square(Value a) { return mul(a, a); }
  /// The value itself when it already has that dtype.
  Value cast(Value a, DType dtype);
  /// An f32 value as contractions read it: cast or, where `dtype` is f32, rounded to tf32.
  Value rounded(Value a, DType dtype);

  // Shape and data movement. A shape that is already there gives the value itself.
  Value broadcast(Value a, Shape shape, std::vector<int64_t> dims);
  /// A scalar [] repeated to `shape`.
  Value broadcast_scalar(Value a, Shape shape) { return broadcast(a, std::move(shape), {}); }
  /// [C] repeated over every axis of `shape` but the last.
  Value broadcast_channels(Value a, const Shape& shape);
  /// [N, C] repeated over the axes of `shape` between the first and the last.
  Value broadcast_image_channels(Value a, const Shape& shape);
  Value reshape(Value a, Shape shape);
  Value transpose(Value a, std::vector<int64_t> perm);
  Value concat(std::vector<Value> values, int64_t axis);
  Value slice(Value a, int64_t axis, int64_t begin, int64_t end);
  Value reverse(Value a, int64_t axis);
  Value pad(Value a, int64_t axis, int64_t before, int64_t after);
  /// table [T, ...], index i32[N] -> [N, ...].
  Value gather(Value table, Value index);
  /// index i32[N], rows [N, ...] -> [count, ...], equal indices added in order.
  Value scatter_add(Value index, Value rows, int64_t count);
  /// [N, H, W, C] -> [N, 2H, 2W, C].
  Value upsample_nearest(Value a);
  /// [N, H, W, C] -> [N, H/2, W/2, C], the mean of 2x2 pixels.
  Value avg_pool(Value a);

  Value pack(std::vector<Value> parts, std::vector<int64_t> offsets, int64_t size);
  Value view(Value flat, int64_t offset, Shape shape);
  Value repack(Value weights, WeightLayout layout);

  Value reduce_sum(Value a, std::vector<int64_t> axes);
  Value reduce_max(Value a, std::vector<int64_t> axes);
  Value sum_all(Value a);
  Value mean_all(Value a);
  struct Moments {
    Value mean, m2;
  };
  Moments channel_moments(Value image);
  struct GroupStatistics {
    Value mean, rstd;
  };
  GroupStatistics group_finish(const std::vector<Moments>& moments, GroupFinishAttrs attrs);

  /// a [M, K] x b [K, N] -> [M, N]; a transposed operand is stored [K, M] or [N, K].
  Value matmul(Value a, Value b, bool transpose_a = false, bool transpose_b = false);
  Value conv_fprop(Value image, Value weights, int64_t stride, int64_t pad);
  Value conv_dgrad(Value dy, Value weights, ConvDgradAttrs attrs);
  Value conv_wgrad(Value image, Value dy, ConvWgradAttrs attrs);
  struct AttentionResult {
    Value out, lse;
  };
  AttentionResult attention(Value qkv, AttentionAttrs attrs);
  Value attention_grad(Value qkv, Value out, Value lse, Value dout, AttentionAttrs attrs);

  Value random_normal(Value seed, Value index, Value step, int64_t stream, Shape shape);
  Value random_uniform(Value seed, Value index, Value step, int64_t stream, Shape shape);
  Value random_int(Value seed, Value index, Value step, int64_t stream, Shape shape, int64_t bound);

 private:
  Graph& graph_;
};

}  // namespace difuse::ir
