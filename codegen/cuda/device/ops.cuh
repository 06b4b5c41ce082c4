// The elementwise ops, each as a function of the same name: what ir/ops/elementwise.cpp says, in fp32.
#pragma once
#include "codegen/cuda/device/vector.cuh"

namespace op {

/// x / (2 pi), less the whole turns: the library's own reduction of large arguments needs local memory.
__device__ __forceinline__ float part_of_turn(float x) {
  const double turns = static_cast<double>(x) * 0.15915494309189535;
  return static_cast<float>(turns - ::rint(turns));
}

__device__ __forceinline__ float neg(float x) { return -x; }
__device__ __forceinline__ int neg(int x) { return -x; }
__device__ __forceinline__ float abs(float x) { return ::fabsf(x); }
__device__ __forceinline__ int abs(int x) { return x < 0 ? -x : x; }
__device__ __forceinline__ float exp(float x) { return ::expf(x); }
__device__ __forceinline__ float expm1(float x) { return ::expm1f(x); }
__device__ __forceinline__ float log(float x) { return ::logf(x); }
__device__ __forceinline__ float sqrt(float x) { return ::sqrtf(x); }
__device__ __forceinline__ float rsqrt(float x) { return 1.0f / ::sqrtf(x); }
__device__ __forceinline__ float recip(float x) { return 1.0f / x; }
__device__ __forceinline__ float sin(float x) { return ::sinpif(2.0f * part_of_turn(x)); }
__device__ __forceinline__ float cos(float x) { return ::cospif(2.0f * part_of_turn(x)); }
__device__ __forceinline__ float tanh(float x) { return ::tanhf(x); }
/// Five instructions and no branch, so that those of many elements run side by side. No step of Newton's: it would gain
/// less than one ulp and make NaN of 1 / inf. Largest errors over all finite x: 2^-22 in itself; 4 ulp where x >= 0,
/// 7 + 1.4 |x| ulp below, where the product's rounding grows with x; from x = -87.4 down it is 0.
__device__ __forceinline__ float sigmoid(float x) { return reciprocal_approx(1.0f + exp2_approx(x * -0x1.715476p+0f)); }
/// x sigmoid(x), one ulp more; NaN at -inf.
__device__ __forceinline__ float silu(float x) { return x * sigmoid(x); }
/// The same within 3 ulp, at several times the cost: where nothing is rounded to 16 bits.
__device__ __forceinline__ float exact_sigmoid(float x) { return 1.0f / (1.0f + ::expf(-x)); }
__device__ __forceinline__ float exact_silu(float x) { return x * exact_sigmoid(x); }
__device__ __forceinline__ float floor(float x) { return ::floorf(x); }
__device__ __forceinline__ float is_finite(float x) { return ::fabsf(x) <= 3.402823466e38f ? 1.0f : 0.0f; }
__device__ __forceinline__ float round_tf32(float x) { return round_to_tf32(x); }

template <class T>
__device__ __forceinline__ T add(T a, T b) {
  return a + b;
}
template <class T>
__device__ __forceinline__ T sub(T a, T b) {
  return a - b;
}
template <class T>
__device__ __forceinline__ T mul(T a, T b) {
  return a * b;
}
template <class T>
__device__ __forceinline__ T div(T a, T b) {
  return a / b;
}
// The second operand where either is NaN.
template <class T>
__device__ __forceinline__ T min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
__device__ __forceinline__ T max(T a, T b) {
  return a > b ? a : b;
}
template <class T>
__device__ __forceinline__ float less(T a, T b) {
  return a < b ? 1.0f : 0.0f;
}
template <class T>
__device__ __forceinline__ float less_equal(T a, T b) {
  return a <= b ? 1.0f : 0.0f;
}
template <class T>
__device__ __forceinline__ float equal(T a, T b) {
  return a == b ? 1.0f : 0.0f;
}
template <class T>
__device__ __forceinline__ T select(float condition, T a, T b) {
  return condition != 0.0f ? a : b;
}

// Casts: to a float format to nearest; to an integer towards zero, clamped to its range.
template <class T>
struct Cast;
template <>
struct Cast<f32> {
  template <class From>
  __device__ __forceinline__ static float of(From x) {
    return static_cast<float>(x);
  }
};
template <>
struct Cast<bf16> {
  template <class From>
  __device__ __forceinline__ static float of(From x) {
    return widen(narrow<bf16>(static_cast<float>(x)));
  }
};
template <>
struct Cast<f16> {
  template <class From>
  __device__ __forceinline__ static float of(From x) {
    return widen(narrow<f16>(static_cast<float>(x)));
  }
};
template <>
struct Cast<i32> {
  __device__ __forceinline__ static int of(float x) {
    return x >= 2147483648.0f ? 2147483647 : x > -2147483648.0f ? static_cast<int>(x) : static_cast<int>(0x80000000u);
  }
  __device__ __forceinline__ static int of(unsigned x) { return static_cast<int>(x < 0x7fffffffu ? x : 0x7fffffffu); }
  __device__ __forceinline__ static int of(int x) { return x; }
};
template <>
struct Cast<u32> {
  __device__ __forceinline__ static unsigned of(float x) {
    return x >= 4294967296.0f ? 4294967295u : x > 0.0f ? static_cast<unsigned>(x) : 0u;
  }
  __device__ __forceinline__ static unsigned of(int x) { return x > 0 ? static_cast<unsigned>(x) : 0u; }
  __device__ __forceinline__ static unsigned of(unsigned x) { return x; }
};
template <>
struct Cast<u8> {
  template <class From>
  __device__ __forceinline__ static unsigned of(From x) {
    const unsigned whole = Cast<u32>::of(x);
    return whole < 255u ? whole : 255u;
  }
};
template <class T, class From>
__device__ __forceinline__ auto cast(From x) {
  return Cast<T>::of(x);
}

}  // namespace op
