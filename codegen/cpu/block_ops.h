// The CPU backend's vector loops over contiguous blocks of f32.
//
// A block is a run of elements that fits the first-level cache (about 1,024), on which a lowered graph applies one op
// after another. Every loop exists for several instruction sets with the same bits. Sums have a fixed order that
// depends on neither the instruction set nor a pointer's alignment. No graph, no threads and no memory management live
// here.
//
// NaN: max(a, b) is a > b ? a : b and min(a, b) is a < b ? a : b, so the second operand wins where either is NaN.
// Comparisons give 1 or 0 and are 0 on NaN. select(c, a, b) is c != 0 ? a : b.
#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>

#include "codegen/cpu/isa.h"

namespace difuse::codegen {

/// X(name, number of operands): the elementwise ops; the names are those of the graph's ops.
// clang-format off
#define DIFUSE_BLOCK_OPS(X) \
  X(neg, 1) X(abs, 1) X(exp, 1) X(expm1, 1) X(log, 1) X(sqrt, 1) X(rsqrt, 1) X(recip, 1) X(sin, 1) X(cos, 1) \
  X(tanh, 1) X(sigmoid, 1) X(silu, 1) X(square, 1) X(floor, 1) X(is_finite, 1) X(round_tf32, 1) X(add, 2) \
  X(sub, 2) X(mul, 2) X(div, 2) X(min, 2) X(max, 2) X(pow, 2) X(less, 2) X(less_equal, 2) X(equal, 2) \
  X(select, 3)
// clang-format on

enum class BlockOp {
#define DIFUSE_BLOCK_OP_ENUM(name, arity) name,
  DIFUSE_BLOCK_OPS(DIFUSE_BLOCK_OP_ENUM)
#undef DIFUSE_BLOCK_OP_ENUM
};

inline constexpr int kBlockOpArities[] = {
#define DIFUSE_BLOCK_OP_ARITY(name, arity) arity,
    DIFUSE_BLOCK_OPS(DIFUSE_BLOCK_OP_ARITY)
#undef DIFUSE_BLOCK_OP_ARITY
};
inline constexpr int kBlockOpCount = static_cast<int>(std::size(kBlockOpArities));

/// The op with this name, if it is elementwise on f32.
std::optional<BlockOp> find_block_op(std::string_view name);
std::string_view block_op_name(BlockOp op);
inline int block_op_arity(BlockOp op) { return kBlockOpArities[static_cast<int>(op)]; }

/// out[i] = op(in[0][i], in[1][i], ...) for i < n; a scalar operand is read at index 0 only. `out` may be the same
/// block as an operand that is not a scalar, but may not overlap one otherwise.
using ElementwiseKernel = void (*)(const float* const* in, float* out, int64_t n);

/// The kernels of one instruction set; a value without state, cheap to make once and keep.
struct BlockOps {
  explicit BlockOps(Isa isa = best_isa());

  /// Bit i of `scalar_operands` says that operand i is one value for the whole block.
  ElementwiseKernel elementwise(BlockOp op, unsigned scalar_operands = 0) const {
    return elementwise_[static_cast<size_t>(op)][scalar_operands];
  }

  // Movement. Blocks do not overlap.
  void (*fill)(float* out, float value, int64_t n);
  void (*copy)(const float* in, float* out, int64_t n);

  // Conversions. To 16 bits: nearest, ties to even, overflow to inf, NaN to a quiet NaN. From float to integers:
  // towards zero, saturating, NaN to 0. From integers to float: nearest, ties to even.
  void (*f32_to_bf16)(const float* in, uint16_t* out, int64_t n);
  void (*bf16_to_f32)(const uint16_t* in, float* out, int64_t n);
  void (*f32_to_f16)(const float* in, uint16_t* out, int64_t n);
  void (*f16_to_f32)(const uint16_t* in, float* out, int64_t n);
  void (*f32_to_i32)(const float* in, int32_t* out, int64_t n);
  void (*i32_to_f32)(const int32_t* in, float* out, int64_t n);
  void (*f32_to_u32)(const float* in, uint32_t* out, int64_t n);
  void (*u32_to_f32)(const uint32_t* in, float* out, int64_t n);
  void (*f32_to_u8)(const float* in, uint8_t* out, int64_t n);
  void (*u8_to_f32)(const uint8_t* in, float* out, int64_t n);

  /// Lane j of 16 takes elements j, j + 16, ... in order; then lanes are folded by halves: j + 8, j + 4, j + 2, j + 1.
  float (*sum)(const float* in, int64_t n);
  /// Sum of in[i] * other[i], in the order of `sum`.
  float (*dot)(const float* in, const float* other, int64_t n);
  /// The largest element, -inf where n is 0; an element that is NaN gives an unspecified result.
  float (*max)(const float* in, int64_t n);

  /// accumulator[c] += sum over rows of in[row * channels + c], rows in order.
  void (*column_sums)(const float* in, int64_t rows, int64_t channels, float* accumulator);
  /// accumulator[c] += sum over rows of in[row * channels + c] * other[row * channels + c], rows in order.
  void (*column_dots)(const float* in, const float* other, int64_t rows, int64_t channels, float* accumulator);

  /// Mean and sum of squared deviations of every channel of a strip of `height` x `width` pixels (width at most 8).
  /// `in` is the strip's first pixel in an image [H, W, channels] whose rows are `row_pitch` floats apart; a block
  /// [rows, channels] is height = rows, width = 1, row_pitch = channels. Two passes: the mean first, then squared
  /// deviations. Both sums run down each column, then over the columns as a fixed tree (x + 4, x + 2, x + 1).
  void (*strip_moments)(const float* in, int64_t row_pitch, int64_t height, int64_t width, int64_t channels,
                        float* mean, float* m2);

 private:
  std::array<std::array<ElementwiseKernel, 8>, kBlockOpCount> elementwise_{};
};

}  // namespace difuse::codegen
