#include "codegen/cpu/block_ops.h"

#include <utility>

#include "codegen/cpu/block_kernels.h"
#include "codegen/cpu/vector_math.h"

namespace difuse::codegen {
namespace {

// One functor per op, named as the op.
namespace functor {
#define DIFUSE_FUNCTOR_1(name, expression)                                  \
  struct name {                                                             \
    DIFUSE_ALWAYS_INLINE static float apply(float x) { return expression; } \
  };
#define DIFUSE_FUNCTOR_2(name, expression)                                           \
  struct name {                                                                      \
    DIFUSE_ALWAYS_INLINE static float apply(float a, float b) { return expression; } \
  };
DIFUSE_FUNCTOR_1(neg, -x)
DIFUSE_FUNCTOR_1(abs, vector_math::abs(x))
DIFUSE_FUNCTOR_1(exp, vector_math::exp(x))
DIFUSE_FUNCTOR_1(expm1, vector_math::expm1(x))
DIFUSE_FUNCTOR_1(log, vector_math::log(x))
DIFUSE_FUNCTOR_1(sqrt, __builtin_sqrtf(x))
DIFUSE_FUNCTOR_1(rsqrt, 1.0f / __builtin_sqrtf(x))
DIFUSE_FUNCTOR_1(recip, 1.0f / x)
DIFUSE_FUNCTOR_1(sin, vector_math::sin(x))
DIFUSE_FUNCTOR_1(cos, vector_math::cos(x))
DIFUSE_FUNCTOR_1(tanh, vector_math::tanh(x))
DIFUSE_FUNCTOR_1(sigmoid, vector_math::sigmoid(x))
DIFUSE_FUNCTOR_1(silu, vector_math::silu(x))
DIFUSE_FUNCTOR_1(square, x* x)
DIFUSE_FUNCTOR_1(floor, vector_math::floor(x))
DIFUSE_FUNCTOR_1(is_finite, vector_math::is_finite(x))
DIFUSE_FUNCTOR_1(round_tf32, vector_math::round_tf32(x))
DIFUSE_FUNCTOR_2(add, a + b)
DIFUSE_FUNCTOR_2(sub, a - b)
DIFUSE_FUNCTOR_2(mul, a* b)
DIFUSE_FUNCTOR_2(div, a / b)
DIFUSE_FUNCTOR_2(min, a < b ? a : b)
DIFUSE_FUNCTOR_2(max, a > b ? a : b)
DIFUSE_FUNCTOR_2(pow, vector_math::pow(a, b))
DIFUSE_FUNCTOR_2(less, a < b ? 1.0f : 0.0f)
DIFUSE_FUNCTOR_2(less_equal, a <= b ? 1.0f : 0.0f)
DIFUSE_FUNCTOR_2(equal, a == b ? 1.0f : 0.0f)
#undef DIFUSE_FUNCTOR_1
#undef DIFUSE_FUNCTOR_2
struct select {
  DIFUSE_ALWAYS_INLINE static float apply(float c, float a, float b) { return c != 0.0f ? a : b; }
};
}  // namespace functor

template <class Functor, int kArity, unsigned kScalars>
struct Elementwise {
  template <int kOperand>
  DIFUSE_ALWAYS_INLINE static float at(const float* in, float scalar, int64_t i) {
    return (kScalars >> kOperand & 1u) != 0 ? scalar : in[i];
  }
  DIFUSE_ALWAYS_INLINE static void run(const float* const* in, float* out, int64_t n) {
    if (n <= 0) return;
    const float* const a = in[0];
    const float a0 = a[0];
    if constexpr (kArity == 1) {
      DIFUSE_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) out[i] = Functor::apply(at<0>(a, a0, i));
    } else if constexpr (kArity == 2) {
      const float* const b = in[1];
      const float b0 = b[0];
      DIFUSE_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) out[i] = Functor::apply(at<0>(a, a0, i), at<1>(b, b0, i));
    } else {
      const float* const b = in[1];
      const float* const c = in[2];
      const float b0 = b[0];
      const float c0 = c[0];
      DIFUSE_INDEPENDENT
      for (int64_t i = 0; i < n; ++i) out[i] = Functor::apply(at<0>(a, a0, i), at<1>(b, b0, i), at<2>(c, c0, i));
    }
  }
};

template <class Functor, int kArity, size_t... kScalars>
void install(std::array<ElementwiseKernel, 8>& kernels, Isa isa, std::index_sequence<kScalars...>) {
  ((kernels[kScalars] = pick<Elementwise<Functor, kArity, static_cast<unsigned>(kScalars)>>(isa)), ...);
}

constexpr std::string_view kNames[] = {
#define DIFUSE_BLOCK_OP_NAME(name, arity) #name,
    DIFUSE_BLOCK_OPS(DIFUSE_BLOCK_OP_NAME)
#undef DIFUSE_BLOCK_OP_NAME
};

}  // namespace

std::optional<BlockOp> find_block_op(std::string_view name) {
  for (int i = 0; i < kBlockOpCount; ++i) {
    if (kNames[i] == name) return static_cast<BlockOp>(i);
  }
  return std::nullopt;
}

std::string_view block_op_name(BlockOp op) { return kNames[static_cast<int>(op)]; }

BlockOps::BlockOps(Isa isa)
    : fill(pick<kernels::Fill>(isa)),
      copy(pick<kernels::Copy>(isa)),
      f32_to_bf16(pick<kernels::Convert<float, uint16_t, kernels::to_bf16>>(isa)),
      bf16_to_f32(pick<kernels::Convert<uint16_t, float, kernels::from_bf16>>(isa)),
      f32_to_f16(pick<kernels::Convert<float, uint16_t, kernels::to_f16>>(isa)),
      f16_to_f32(pick<kernels::Convert<uint16_t, float, kernels::from_f16>>(isa)),
      f32_to_i32(pick<kernels::Convert<float, int32_t, kernels::to_i32>>(isa)),
      i32_to_f32(pick<kernels::Convert<int32_t, float, kernels::from_integer<int32_t>>>(isa)),
      f32_to_u32(pick<kernels::Convert<float, uint32_t, kernels::to_u32>>(isa)),
      u32_to_f32(pick<kernels::Convert<uint32_t, float, kernels::from_integer<uint32_t>>>(isa)),
      f32_to_u8(pick<kernels::Convert<float, uint8_t, kernels::to_u8>>(isa)),
      u8_to_f32(pick<kernels::Convert<uint8_t, float, kernels::from_integer<uint8_t>>>(isa)),
      sum(pick<kernels::Sum>(isa)),
      dot(pick<kernels::Dot>(isa)),
      max(pick<kernels::Max>(isa)),
      column_sums(pick<kernels::ColumnSums>(isa)),
      column_dots(pick<kernels::ColumnDots>(isa)),
      strip_moments(pick<kernels::StripMoments>(isa)) {
#define DIFUSE_BLOCK_OP_INSTALL(name, arity)                                           \
  install<functor::name, arity>(elementwise_[static_cast<size_t>(BlockOp::name)], isa, \
                                std::make_index_sequence<(1u << (arity))>());
  DIFUSE_BLOCK_OPS(DIFUSE_BLOCK_OP_INSTALL)
#undef DIFUSE_BLOCK_OP_INSTALL
}

}  // namespace difuse::codegen
