#include "codegen/cpu/kernels/register_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "ir/error.h"
#include "ir/op.h"

namespace difuse::codegen::cpu {
namespace {

using ir::DType;
using ir::Op;

const int32_t* as_int(const float* p) { return reinterpret_cast<const int32_t*>(p); }
int32_t* as_int(float* p) { return reinterpret_cast<int32_t*>(p); }
const uint32_t* as_uint(const float* p) { return reinterpret_cast<const uint32_t*>(p); }
uint32_t* as_uint(float* p) { return reinterpret_cast<uint32_t*>(p); }

// Integer arithmetic wraps, as unsigned arithmetic does.
int32_t wrapped(uint32_t x) { return static_cast<int32_t>(x); }
uint32_t bits(int32_t x) { return static_cast<uint32_t>(x); }

struct Neg {
  static int32_t apply(int32_t a) { return wrapped(0u - bits(a)); }
};
struct Abs {
  static int32_t apply(int32_t a) { return a < 0 ? Neg::apply(a) : a; }
};
struct Add {
  static int32_t apply(int32_t a, int32_t b) { return wrapped(bits(a) + bits(b)); }
};
struct Sub {
  static int32_t apply(int32_t a, int32_t b) { return wrapped(bits(a) - bits(b)); }
};
struct Mul {
  static int32_t apply(int32_t a, int32_t b) { return wrapped(bits(a) * bits(b)); }
};
struct Min {
  static int32_t apply(int32_t a, int32_t b) { return a < b ? a : b; }
};
struct Max {
  static int32_t apply(int32_t a, int32_t b) { return a > b ? a : b; }
};
struct Less {
  static float apply(int32_t a, int32_t b) { return a < b ? 1.0f : 0.0f; }
};
struct LessEqual {
  static float apply(int32_t a, int32_t b) { return a <= b ? 1.0f : 0.0f; }
};
struct Equal {
  static float apply(int32_t a, int32_t b) { return a == b ? 1.0f : 0.0f; }
};

void put(float* out, int64_t i, float x) { out[i] = x; }
void put(float* out, int64_t i, int32_t x) { as_int(out)[i] = x; }

template <class F>
void unary(const float* const* in, float* out, int64_t n) {
  const int32_t* a = as_int(in[0]);
  for (int64_t i = 0; i < n; ++i) put(out, i, F::apply(a[i]));
}
/// A step of 0 reads a scalar.
template <class F, int64_t kStepA, int64_t kStepB>
void binary(const float* const* in, float* out, int64_t n) {
  const int32_t *a = as_int(in[0]), *b = as_int(in[1]);
  for (int64_t i = 0; i < n; ++i) put(out, i, F::apply(a[i * kStepA], b[i * kStepB]));
}
template <class F>
ElementwiseKernel binary_for(unsigned scalars) {
  constexpr ElementwiseKernel kTable[] = {binary<F, 1, 1>, binary<F, 0, 1>, binary<F, 1, 0>, binary<F, 0, 0>};
  return kTable[scalars];
}
template <unsigned kScalars>
void select_integers(const float* const* in, float* out, int64_t n) {
  constexpr int64_t kC = kScalars & 1 ? 0 : 1, kA = kScalars & 2 ? 0 : 1, kB = kScalars & 4 ? 0 : 1;
  const int32_t *a = as_int(in[1]), *b = as_int(in[2]);
  for (int64_t i = 0; i < n; ++i) as_int(out)[i] = in[0][i * kC] != 0.0f ? a[i * kA] : b[i * kB];
}

ElementwiseKernel integer_kernel(Op op, unsigned scalars) {
  switch (op) {
    case Op::neg:
      return unary<Neg>;
    case Op::abs:
      return unary<Abs>;
    case Op::add:
      return binary_for<Add>(scalars);
    case Op::sub:
      return binary_for<Sub>(scalars);
    case Op::mul:
      return binary_for<Mul>(scalars);
    case Op::min:
      return binary_for<Min>(scalars);
    case Op::max:
      return binary_for<Max>(scalars);
    case Op::less:
      return binary_for<Less>(scalars);
    case Op::less_equal:
      return binary_for<LessEqual>(scalars);
    case Op::equal:
      return binary_for<Equal>(scalars);
    case Op::select: {
      constexpr ElementwiseKernel kTable[] = {select_integers<0>, select_integers<1>, select_integers<2>,
                                              select_integers<3>, select_integers<4>, select_integers<5>,
                                              select_integers<6>, select_integers<7>};
      return kTable[scalars];
    }
    default:
      return nullptr;
  }
}

/// Rounds through memory of the narrow dtype, a little at a time.
template <DType kNarrow>
void round_through(const float* const* in, float* out, int64_t n) {
  constexpr int64_t kPiece = 256;
  alignas(64) std::byte narrow[kPiece * 2];
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t count = std::min(kPiece, n - i);
    store_block(kNarrow, in[0] + i, narrow, count);
    load_block(kNarrow, narrow, out + i, count);
  }
}

void float_to_i32(const float* const* in, float* out, int64_t n) { block_ops().f32_to_i32(in[0], as_int(out), n); }
void float_to_u32(const float* const* in, float* out, int64_t n) { block_ops().f32_to_u32(in[0], as_uint(out), n); }
void i32_to_float(const float* const* in, float* out, int64_t n) { block_ops().i32_to_f32(as_int(in[0]), out, n); }
void u32_to_float(const float* const* in, float* out, int64_t n) { block_ops().u32_to_f32(as_uint(in[0]), out, n); }
void i32_to_u32(const float* const* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) as_int(out)[i] = std::max(as_int(in[0])[i], 0);
}
void u32_to_i32(const float* const* in, float* out, int64_t n) {
  constexpr uint32_t kLargest = std::numeric_limits<int32_t>::max();
  for (int64_t i = 0; i < n; ++i) as_uint(out)[i] = std::min(as_uint(in[0])[i], kLargest);
}
/// An integer of any size rounds once into a 16-bit float: through f32 with the lost bits kept sticky (round to odd).
template <bool kSigned, DType kNarrow>
void integer_to_narrow(const float* const* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const double exact = kSigned ? double{as_int(in[0])[i] * 1.0} : double{as_uint(in[0])[i] * 1.0};
    float f = static_cast<float>(exact);
    if (static_cast<double>(f) != exact) {
      uint32_t word;
      std::memcpy(&word, &f, sizeof(word));
      if ((word & 1u) == 0) word += std::abs(exact) > std::abs(static_cast<double>(f)) ? 1u : ~0u;
      std::memcpy(&f, &word, sizeof(word));
    }
    out[i] = f;
  }
  const float* const rounded[] = {out};
  round_through<kNarrow>(rounded, out, n);
}
template <bool kSigned>
void integer_to_u8(const float* const* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = kSigned ? static_cast<float>(std::clamp(as_int(in[0])[i], 0, 255))
                     : static_cast<float>(std::min(as_uint(in[0])[i], 255u));
  }
}

}  // namespace

const BlockOps& block_ops() {
  static const BlockOps ops;
  return ops;
}

ElementwiseKernel elementwise_kernel(Op op, DType operand, unsigned scalars) {
  ElementwiseKernel kernel = nullptr;
  if (operand == DType::i32) {
    kernel = integer_kernel(op, scalars);
  } else if (const auto block = find_block_op(ir::to_string(op))) {
    kernel = block_ops().elementwise(*block, scalars);
  }
  if (kernel == nullptr) {
    throw Error(fmt::format("the CPU backend has no {} on {}", ir::to_string(op), ir::to_string(operand)));
  }
  return kernel;
}

ElementwiseKernel cast_kernel(DType from, DType to) {
  const bool is_signed = from == DType::i32;
  if (from == to) return nullptr;
  if (from == DType::i32 || from == DType::u32) {
    switch (to) {
      case DType::f32:
        return is_signed ? i32_to_float : u32_to_float;
      case DType::bf16:
        return is_signed ? integer_to_narrow<true, DType::bf16> : integer_to_narrow<false, DType::bf16>;
      case DType::f16:
        return is_signed ? integer_to_narrow<true, DType::f16> : integer_to_narrow<false, DType::f16>;
      case DType::i32:
        return u32_to_i32;
      case DType::u32:
        return i32_to_u32;
      case DType::u8:
        return is_signed ? integer_to_u8<true> : integer_to_u8<false>;
    }
  }
  switch (to) {
    case DType::f32:
      return nullptr;
    case DType::bf16:
      return round_through<DType::bf16>;
    case DType::f16:
      return round_through<DType::f16>;
    case DType::i32:
      return float_to_i32;
    case DType::u32:
      return float_to_u32;
    case DType::u8:
      return round_through<DType::u8>;
  }
  return nullptr;
}

void expand_kernel(const float* const* in, float* out, int64_t n) {
  const int32_t value = as_int(in[0])[0];  // As bits: it may be an integer.
  for (int64_t i = 0; i < n; ++i) as_int(out)[i] = value;
}

void load_block(DType dtype, const std::byte* from, float* to, int64_t n) {
  if (dtype == DType::bf16) block_ops().bf16_to_f32(reinterpret_cast<const uint16_t*>(from), to, n);
  if (dtype == DType::f16) block_ops().f16_to_f32(reinterpret_cast<const uint16_t*>(from), to, n);
  if (dtype == DType::u8) block_ops().u8_to_f32(reinterpret_cast<const uint8_t*>(from), to, n);
}

void store_block(DType dtype, const float* from, std::byte* to, int64_t n) {
  if (dtype == DType::bf16) block_ops().f32_to_bf16(from, reinterpret_cast<uint16_t*>(to), n);
  if (dtype == DType::f16) block_ops().f32_to_f16(from, reinterpret_cast<uint16_t*>(to), n);
  if (dtype == DType::u8) block_ops().f32_to_u8(from, reinterpret_cast<uint8_t*>(to), n);
}

}  // namespace difuse::codegen::cpu
