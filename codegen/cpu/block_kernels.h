// Bodies of the movement, conversion and reduction kernels of block_ops.h; included by block_ops.cpp only.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#include "codegen/cpu/isa.h"
#include "codegen/cpu/vector_math.h"

namespace difuse::codegen::kernels {

// A result may be the same block as an operand, which carries nothing from one element to the next.
#ifdef __clang__
#define DIFUSE_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define DIFUSE_INDEPENDENT _Pragma("GCC ivdep")
#endif

struct Fill {
  DIFUSE_ALWAYS_INLINE static void run(float* out, float value, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = value;
  }
};

struct Copy {
  DIFUSE_ALWAYS_INLINE static void run(const float* in, float* out, int64_t n) {
    if (n > 0) std::memcpy(out, in, static_cast<size_t>(n) * sizeof(float));
  }
};

// Conversions of one element.

DIFUSE_ALWAYS_INLINE uint16_t to_bf16(float x) {
  const uint32_t bits = vector_math::bits_of(x);
  const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  const uint32_t quiet_nan = bits >> 16 | 0x40u;
  return static_cast<uint16_t>((bits & ~vector_math::kSignBit) > vector_math::kExponentBits ? quiet_nan : rounded);
}

DIFUSE_ALWAYS_INLINE float from_bf16(uint16_t x) { return vector_math::float_of(static_cast<uint32_t>(x) << 16); }

DIFUSE_ALWAYS_INLINE uint16_t to_f16(float x) {
  const uint32_t bits = vector_math::bits_of(x);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & ~vector_math::kSignBit;
  // Normal results: rebias the exponent by 112 and round 13 mantissa bits away; the carry runs into the exponent.
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  // Below 2^-14: adding 1/2 puts the result's last bit, 2^-24, at the float's last bit, so the addition itself rounds.
  const uint32_t denormal = vector_math::bits_of(vector_math::float_of(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t result = magnitude < 0x38800000u ? denormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;  // 65,520 and above round to inf.
  result = magnitude > vector_math::kExponentBits ? 0x7e00u : result;
  return static_cast<uint16_t>(sign | result);
}

DIFUSE_ALWAYS_INLINE float from_f16(uint16_t x) {
  const uint32_t wide = x;
  const uint32_t sign = (wide & 0x8000u) << 16;
  const uint32_t magnitude = wide & 0x7fffu;
  const uint32_t shifted = magnitude << 13;
  const uint32_t normal = shifted + (112u << 23);
  const uint32_t special = shifted + (224u << 23);  // inf and NaN keep the largest exponent.
  const uint32_t denormal = vector_math::bits_of(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  uint32_t result = magnitude < 0x0400u ? denormal : normal;
  result = magnitude >= 0x7c00u ? special : result;
  return vector_math::float_of(sign | result);
}

DIFUSE_ALWAYS_INLINE int32_t to_i32(float x) {
  constexpr float kLimit = 2147483648.0f;
  const float low = x > -kLimit ? x : -kLimit;  // NaN goes low and is set right below.
  const bool above = low >= kLimit;
  const int32_t value = static_cast<int32_t>(above ? 0.0f : low);
  const int32_t saturated = above ? std::numeric_limits<int32_t>::max() : value;
  return x == x ? saturated : 0;
}

DIFUSE_ALWAYS_INLINE uint32_t to_u32(float x) {
  constexpr float kHalf = 2147483648.0f;
  const float low = x > 0.0f ? x : 0.0f;  // NaN too.
  const bool above = low >= 2.0f * kHalf;
  const float inside = above ? 0.0f : low;
  const bool upper = inside >= kHalf;  // A signed conversion of the lower 31 bits: no wider one has a vector form.
  const uint32_t value = static_cast<uint32_t>(static_cast<int32_t>(upper ? inside - kHalf : inside));
  const uint32_t whole = upper ? value + 0x80000000u : value;
  return above ? 0xffffffffu : whole;
}

DIFUSE_ALWAYS_INLINE uint8_t to_u8(float x) {
  const float low = x > 0.0f ? x : 0.0f;
  const float inside = low > 255.0f ? 255.0f : low;
  return static_cast<uint8_t>(static_cast<int32_t>(inside));
}

template <class Integer>
DIFUSE_ALWAYS_INLINE float from_integer(Integer x) {
  return static_cast<float>(x);
}

template <class From, class To, auto kConvert>
struct Convert {
  DIFUSE_ALWAYS_INLINE static void run(const From* in, To* out, int64_t n) {
    DIFUSE_INDEPENDENT
    for (int64_t i = 0; i < n; ++i) out[i] = kConvert(in[i]);
  }
};

// Reductions. Sixteen lanes are two vector types of eight, which every instruction set maps to what it has: the order
// of additions is the type's, not the compiler's.

using Eight = float __attribute__((vector_size(32)));
inline constexpr int64_t kLanes = 16;

struct Lanes {
  Eight low = {};
  Eight high = {};

  DIFUSE_ALWAYS_INLINE void load(const float* in) {
    std::memcpy(&low, in, sizeof(low));
    std::memcpy(&high, in + 8, sizeof(high));
  }
  /// The first `count` lanes; the others keep their value.
  DIFUSE_ALWAYS_INLINE void load_some(const float* in, int64_t count) {
    float values[kLanes];
    store(values);
    for (int64_t j = 0; j < count; ++j) values[j] = in[j];
    load(values);
  }
  DIFUSE_ALWAYS_INLINE void store(float* out) const {
    std::memcpy(out, &low, sizeof(low));
    std::memcpy(out + 8, &high, sizeof(high));
  }
  DIFUSE_ALWAYS_INLINE void store_some(float* out, int64_t count) const {
    float values[kLanes];
    store(values);
    for (int64_t j = 0; j < count; ++j) out[j] = values[j];
  }
  DIFUSE_ALWAYS_INLINE void fill(float value) {
    low = value - Eight{};
    high = value - Eight{};
  }
  DIFUSE_ALWAYS_INLINE void add(const Lanes& x) {
    low += x.low;
    high += x.high;
  }
  DIFUSE_ALWAYS_INLINE void add_product(const Lanes& x, const Lanes& y) {
    low += x.low * y.low;
    high += x.high * y.high;
  }
  DIFUSE_ALWAYS_INLINE void raise(const Lanes& x) {
    low = x.low > low ? x.low : low;
    high = x.high > high ? x.high : high;
  }
  DIFUSE_ALWAYS_INLINE void subtract(const Lanes& x) {
    low -= x.low;
    high -= x.high;
  }
  DIFUSE_ALWAYS_INLINE void divide(float divisor) {
    low /= divisor;
    high /= divisor;
  }
  DIFUSE_ALWAYS_INLINE float fold_sum() const {
    float values[kLanes];
    store(values);
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (int64_t j = 0; j < half; ++j) values[j] += values[j + half];
    }
    return values[0];
  }
};

struct Sum {
  DIFUSE_ALWAYS_INLINE static float run(const float* in, int64_t n) {
    Lanes total;
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      Lanes x;
      x.load(in + i);
      total.add(x);
    }
    if (i < n) {
      Lanes x;
      x.load_some(in + i, n - i);
      total.add(x);
    }
    return total.fold_sum();
  }
};

struct Dot {
  DIFUSE_ALWAYS_INLINE static float run(const float* in, const float* other, int64_t n) {
    Lanes total;
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      Lanes x, y;
      x.load(in + i);
      y.load(other + i);
      total.add_product(x, y);
    }
    if (i < n) {
      Lanes x, y;
      x.load_some(in + i, n - i);
      y.load_some(other + i, n - i);
      total.add_product(x, y);
    }
    return total.fold_sum();
  }
};

struct Max {
  DIFUSE_ALWAYS_INLINE static float run(const float* in, int64_t n) {
    constexpr float kLowest = -std::numeric_limits<float>::infinity();
    Lanes top;
    top.fill(kLowest);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      Lanes x;
      x.load(in + i);
      top.raise(x);
    }
    if (i < n) {
      Lanes x = top;
      x.load_some(in + i, n - i);
      top.raise(x);
    }
    float values[kLanes];
    top.store(values);
    float result = kLowest;
    for (int64_t j = 0; j < kLanes; ++j) result = values[j] > result ? values[j] : result;
    return result;
  }
};

struct ColumnSums {
  DIFUSE_ALWAYS_INLINE static void run(const float* __restrict in, int64_t rows, int64_t channels,
                                       float* __restrict accumulator) {
    for (int64_t row = 0; row < rows; ++row) {
      const float* __restrict x = in + row * channels;
      for (int64_t c = 0; c < channels; ++c) accumulator[c] += x[c];
    }
  }
};

struct ColumnDots {
  DIFUSE_ALWAYS_INLINE static void run(const float* in, const float* other, int64_t rows, int64_t channels,
                                       float* __restrict accumulator) {
    for (int64_t row = 0; row < rows; ++row) {
      const float* x = in + row * channels;
      const float* y = other + row * channels;
      for (int64_t c = 0; c < channels; ++c) accumulator[c] += x[c] * y[c];
    }
  }
};

struct StripMoments {
  static constexpr int64_t kColumns = 8;

  /// Sums values, or squared deviations from `mean`, of the strip's pixels for `count` <= 16 channels.
  template <bool kDeviations>
  DIFUSE_ALWAYS_INLINE static Lanes strip_sum(const float* in, int64_t row_pitch, int64_t height, int64_t width,
                                              int64_t channels, int64_t count, const Lanes& mean) {
    Lanes column[kColumns];
    for (int64_t x = 0; x < width; ++x) {
      Lanes total;
      for (int64_t y = 0; y < height; ++y) {
        const float* pixel = in + y * row_pitch + x * channels;
        Lanes value;
        if (count == kLanes) {
          value.load(pixel);
        } else {
          value.load_some(pixel, count);
        }
        if constexpr (kDeviations) {
          value.subtract(mean);
          total.add_product(value, value);
        } else {
          total.add(value);
        }
      }
      column[x] = total;
    }
    for (int64_t half = kColumns / 2; half > 0; half /= 2) {
      for (int64_t x = 0; x < half; ++x) column[x].add(column[x + half]);
    }
    return column[0];
  }

  DIFUSE_ALWAYS_INLINE static void run(const float* in, int64_t row_pitch, int64_t height, int64_t width,
                                       int64_t channels, float* mean, float* m2) {
    const float pixels = static_cast<float>(height * width);
    for (int64_t c = 0; c < channels; c += kLanes) {
      // The last sixteen channels may be taken in part a second time: no channel's sum sees another's.
      const int64_t at = channels < kLanes || c + kLanes <= channels ? c : channels - kLanes;
      const int64_t count = channels < kLanes ? channels : kLanes;
      Lanes average = strip_sum<false>(in + at, row_pitch, height, width, channels, count, Lanes());
      average.divide(pixels);
      average.store_some(mean + at, count);
      const Lanes sum = strip_sum<true>(in + at, row_pitch, height, width, channels, count, average);
      sum.store_some(m2 + at, count);
    }
  }
};

}  // namespace difuse::codegen::kernels
