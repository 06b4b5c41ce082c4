// Elementary functions on one float, written so that a loop over them vectorises: no branch, no table, no libm call.
//
// A vector body and its scalar tail run the same operations, so a value's bits do not depend on its place in an array.
// The polynomials are those of Cephes (S. Moshier, single precision: expf, logf, sinf, cosf), ranges reduced in the
// manner of Cody and Waite. Compile with -ffp-contract=off.
//
// Largest errors over all finite inputs: exp, log, expm1 and pow 2 ulp, sigmoid and tanh 3, silu 4; sin and cos 1e-7
// absolute for |x| < 1e4. Overflow gives inf, NaN stays NaN, results may be denormal.
#pragma once

#include <cstdint>
#include <limits>

#include "codegen/cpu/isa.h"

namespace difuse::codegen::vector_math {

DIFUSE_ALWAYS_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
DIFUSE_ALWAYS_INLINE float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

inline constexpr uint32_t kSignBit = 0x80000000u;
inline constexpr uint32_t kExponentBits = 0x7f800000u;

DIFUSE_ALWAYS_INLINE float abs(float x) { return float_of(bits_of(x) & ~kSignBit); }
DIFUSE_ALWAYS_INLINE float with_sign_of(float magnitude, float sign) {
  return float_of(bits_of(magnitude) | (bits_of(sign) & kSignBit));
}

/// 1 for finite x, 0 for inf and NaN.
DIFUSE_ALWAYS_INLINE float is_finite(float x) { return (bits_of(x) & kExponentBits) != kExponentBits ? 1.0f : 0.0f; }

/// Rounded to 10 mantissa bits, nearest, ties away from zero (the rounding of cvt.rna.tf32.f32); inf and NaN unchanged.
DIFUSE_ALWAYS_INLINE float round_tf32(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = (bits + 0x1000u) & ~0x1fffu;
  return float_of((bits & kExponentBits) == kExponentBits ? bits : rounded);
}

/// The largest integer that is not above x; keeps -0, inf and NaN.
DIFUSE_ALWAYS_INLINE float floor(float x) {
  constexpr float kAllIntegers = 8388608.0f;  // From 2^23 on every float is an integer.
  const float magnitude = abs(x);
  const float nearest = with_sign_of((magnitude + kAllIntegers) - kAllIntegers, x);
  const float below = nearest > x ? nearest - 1.0f : nearest;
  return magnitude < kAllIntegers ? with_sign_of(abs(below), x) : x;
}

namespace detail {

/// x = n ln2 + r with |r| <= ln2 / 2. Adding and taking away 1.5 * 2^23 rounds to an integer and leaves it in the low
/// bits, so no conversion (undefined for NaN) is needed.
struct Reduced {
  int32_t n;
  float r;
};
DIFUSE_ALWAYS_INLINE Reduced reduce_ln2(float x) {
  constexpr float kMagic = 12582912.0f;
  const float shifted = x * 1.44269504088896341f + kMagic;
  const float n = shifted - kMagic;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  return {static_cast<int32_t>(bits_of(shifted) - bits_of(kMagic)), r};
}

/// e^r - 1 for |r| <= ln2 / 2.
DIFUSE_ALWAYS_INLINE float expm1_reduced(float r) {
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * (r * r) + r;
}

/// 2^n for -126 <= n <= 127.
DIFUSE_ALWAYS_INLINE float power_of_two(int32_t n) { return float_of((static_cast<uint32_t>(n) + 127u) << 23); }

/// x within [low, high]; NaN stays NaN.
DIFUSE_ALWAYS_INLINE float clamp(float x, float low, float high) {
  const float above = x < low ? low : x;
  return above > high ? high : above;
}

}  // namespace detail

DIFUSE_ALWAYS_INLINE float exp(float x) {
  const auto [n, r] = detail::reduce_ln2(detail::clamp(x, -104.0f, 89.0f));
  const int32_t half = n >> 1;  // 2^n in two factors, for results that are denormal or overflow.
  return (detail::expm1_reduced(r) + 1.0f) * detail::power_of_two(half) * detail::power_of_two(n - half);
}

DIFUSE_ALWAYS_INLINE float expm1(float x) {
  const auto [n, r] = detail::reduce_ln2(detail::clamp(x, -30.0f, 89.0f));
  const float half_scale = detail::power_of_two(n - 1);  // Half of 2^n: 2^128 is no float.
  const float result = 2.0f * (half_scale * detail::expm1_reduced(r) + (half_scale - 0.5f));
  return abs(x) < 1e-10f ? x : result;  // Keeps -0 and denormals, whose square is 0.
}

/// -inf at 0, NaN below.
DIFUSE_ALWAYS_INLINE float log(float x) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const bool denormal = x < std::numeric_limits<float>::min();
  const float normal = denormal ? x * 8388608.0f : x;
  // normal = m 2^e with sqrt(1/2) <= m < sqrt(2): the mantissa's bits are counted from those of sqrt(1/2).
  constexpr uint32_t kSqrtHalf = 0x3f3504f3u;
  const uint32_t offset = bits_of(normal) - kSqrtHalf;
  const float e = static_cast<float>(static_cast<int32_t>(offset) >> 23) - (denormal ? 23.0f : 0.0f);
  const float z = float_of((offset & 0x007fffffu) + kSqrtHalf) - 1.0f;
  float p = 7.0376836292e-2f;
  p = p * z - 1.1514610310e-1f;
  p = p * z + 1.1676998740e-1f;
  p = p * z - 1.2420140846e-1f;
  p = p * z + 1.4249322787e-1f;
  p = p * z - 1.6668057665e-1f;
  p = p * z + 2.0000714765e-1f;
  p = p * z - 2.4999993993e-1f;
  p = p * z + 3.3333331174e-1f;
  const float square = z * z;
  const float small = (p * z * square + e * -2.12194440e-4f) - 0.5f * square;
  float result = (z + small) + e * 0.693359375f;
  result = x < kInfinity ? result : x;  // inf and NaN.
  result = x == 0.0f ? -kInfinity : result;
  return x < 0.0f ? std::numeric_limits<float>::quiet_NaN() : result;
}

/// 1 / (1 + e^-x), through e^-|x|, which cannot overflow.
DIFUSE_ALWAYS_INLINE float sigmoid(float x) {
  const float e = exp(-abs(x));
  const float upper = 1.0f / (1.0f + e);
  return x < 0.0f ? e * upper : upper;
}

/// x sigmoid(x); NaN at -inf.
DIFUSE_ALWAYS_INLINE float silu(float x) { return x * sigmoid(x); }

DIFUSE_ALWAYS_INLINE float tanh(float x) {
  const float e = expm1(detail::clamp(2.0f * abs(x), 0.0f, 20.0f));
  return with_sign_of(e / (e + 2.0f), x);
}

namespace detail {

/// sin(x + quarter pi/2). The reduction runs in double: pi/2 in a part of 33 bits, whose multiples are exact, and the
/// rest.
DIFUSE_ALWAYS_INLINE float sin_quarter(float x, uint32_t quarter) {
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52
  const double wide = static_cast<double>(x);
  const double shifted = wide * 0.63661977236758134308 + kMagic;
  const double n = shifted - kMagic;
  const double rest = (wide - n * 1.57079631090164184570) - n * 1.58932547735281966916e-8;
  // Beyond 1e15 the reduction has no meaning; the clamp keeps the result within [-1, 1].
  const float r = clamp(static_cast<float>(rest), -0.7854f, 0.7854f);
  const uint32_t quadrant = static_cast<uint32_t>(__builtin_bit_cast(uint64_t, shifted)) + quarter;
  const float z = r * r;
  const float sine = ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f) * z * r + r;
  const float cosine =
      ((2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f) * (z * z) - 0.5f * z + 1.0f;
  const float value = (quadrant & 1u) != 0 ? cosine : sine;
  return float_of(bits_of(value) ^ ((quadrant & 2u) << 30));
}

}  // namespace detail

DIFUSE_ALWAYS_INLINE float sin(float x) { return detail::sin_quarter(x, 0); }
DIFUSE_ALWAYS_INLINE float cos(float x) { return detail::sin_quarter(x, 1); }

/// x^y as C's pow: a negative x needs an integer y, x^0 and 1^y are 1. Computed in double.
DIFUSE_ALWAYS_INLINE float pow(float x, float y) {
  constexpr double kMagic = 6755399441055744.0;
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdull;
  // log2|x| = e + log2(m), log(m) = 2 atanh(f), f = (m - 1) / (m + 1).
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float magnitude = abs(x);
  const bool zero = magnitude == 0.0f;
  const bool infinite = magnitude == kInfinity;
  const double base = static_cast<double>(zero || infinite ? 1.0f : magnitude);
  const uint64_t offset = __builtin_bit_cast(uint64_t, base) - kSqrtHalf;
  const double e = static_cast<double>(static_cast<int32_t>(static_cast<int64_t>(offset) >> 52));
  const double m = __builtin_bit_cast(double, (offset & 0x000fffffffffffffull) + kSqrtHalf);
  const double f = (m - 1.0) / (m + 1.0);
  const double f2 = f * f;
  double series = 1.0 / 15.0;
  series = series * f2 + 1.0 / 13.0;
  series = series * f2 + 1.0 / 11.0;
  series = series * f2 + 1.0 / 9.0;
  series = series * f2 + 1.0 / 7.0;
  series = series * f2 + 1.0 / 5.0;
  series = series * f2 + 1.0 / 3.0;
  series = series * f2 + 1.0;
  const double log2 = e + 2.0 * f * series * 1.44269504088896340736;

  // 2^t, t held where the float result is already 0 or inf.
  const double exact = static_cast<double>(y) * log2;
  const double low = exact < -200.0 ? -200.0 : exact;
  const double t = low > 200.0 ? 200.0 : low;
  const double shifted = t + kMagic;
  const double r = (t - (shifted - kMagic)) * 0.69314718055994530942;
  double p = 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const uint64_t exponent = (__builtin_bit_cast(uint64_t, shifted) - __builtin_bit_cast(uint64_t, kMagic) + 1023u)
                            << 52;
  const float regular = static_cast<float>(p * __builtin_bit_cast(double, exponent));
  const float limit = zero == (y > 0.0f) ? 0.0f : kInfinity;
  const float power = zero || infinite ? limit : regular;

  const float half_y = 0.5f * y;
  const bool integer = floor(y) == y;
  const bool odd = integer && floor(half_y) != half_y;
  const bool negative = (bits_of(x) & kSignBit) != 0;
  float result = negative && odd ? -power : power;
  const bool undefined = x < 0.0f && !integer && !infinite;
  result = undefined || x != x || y != y ? std::numeric_limits<float>::quiet_NaN() : result;
  result = magnitude == 1.0f && (bits_of(y) & ~kSignBit) == kExponentBits ? 1.0f : result;
  return x == 1.0f || y == 0.0f ? 1.0f : result;
}

}  // namespace difuse::codegen::vector_math
