#include "tests/support/cuda_emulator/instructions.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

namespace difuse::testing {
namespace {

using emulator::Collective;
using emulator::Part;

float from_bf16(uint32_t bits) { return std::bit_cast<float>(bits << 16); }

float f16_value(uint32_t bits) {
  const uint32_t exponent = bits >> 10 & 31u, mantissa = bits & 1023u;
  const float sign = bits & 0x8000u ? -1.0f : 1.0f;
  if (exponent == 31) return mantissa != 0 ? NAN : sign * INFINITY;
  return sign * std::ldexp(static_cast<float>(exponent != 0 ? 1024 + mantissa : mantissa),
                           static_cast<int>(exponent != 0 ? exponent : 1) - 25);
}

float from_f16(uint32_t bits) {
  static const std::vector<float> values = [] {
    std::vector<float> all(1 << 16);
    for (uint32_t i = 0; i < all.size(); ++i) all[i] = f16_value(i);
    return all;
  }();
  return values[bits & 0xffffu];
}

float from_tf32(uint32_t bits) { return std::bit_cast<float>(bits & ~0x1fffu); }

template <int depth>
struct Operands {
  float a[16][depth], b[depth][8];
};

template <int depth>
void multiply(const Operands<depth>& operands, const WarpParts& lanes) {
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    float* const d = lanes[static_cast<size_t>(lane)]->d;
    for (int e = 0; e < 4; ++e) {
      const int i = g + 8 * (e / 2), j = 2 * t + e % 2;
      std::array<double, depth + 1> addends;
      for (int k = 0; k < depth; ++k) {
        addends[static_cast<size_t>(k)] = static_cast<double>(operands.a[i][k]) * static_cast<double>(operands.b[k][j]);
      }
      addends[depth] = static_cast<double>(d[e]);
      d[e] = truncated_sum(addends);
    }
  }
}

template <float (*convert)(uint32_t)>
void multiply_halves(const WarpParts& lanes) {
  Operands<16> operands;
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    const Part& part = *lanes[static_cast<size_t>(lane)];
    for (int high = 0; high < 2; ++high) {
      const int k = 2 * t + high;
      const auto half = [high](uint32_t bits) { return convert(high != 0 ? bits >> 16 : bits & 0xffffu); };
      operands.a[g][k] = half(part.a[0]);
      operands.a[g + 8][k] = half(part.a[1]);
      operands.a[g][k + 8] = half(part.a[2]);
      operands.a[g + 8][k + 8] = half(part.a[3]);
      operands.b[k][g] = half(part.b[0]);
      operands.b[k + 8][g] = half(part.b[1]);
    }
  }
  multiply(operands, lanes);
}

void multiply_tf32(const WarpParts& lanes) {
  Operands<8> operands;
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    const Part& part = *lanes[static_cast<size_t>(lane)];
    operands.a[g][t] = from_tf32(part.a[0]);
    operands.a[g + 8][t] = from_tf32(part.a[1]);
    operands.a[g][t + 4] = from_tf32(part.a[2]);
    operands.a[g + 8][t + 4] = from_tf32(part.a[3]);
    operands.b[t][g] = from_tf32(part.b[0]);
    operands.b[t + 4][g] = from_tf32(part.b[1]);
  }
  multiply(operands, lanes);
}

}  // namespace

float truncated_sum(std::span<const double> addends) {
  constexpr int kBits = 24 + 2;
  double largest = 0;
  for (const double x : addends) largest = std::max(largest, std::abs(x));
  if (!(largest > 0) || !std::isfinite(largest))
    return static_cast<float>(std::accumulate(addends.begin(), addends.end(), 0.0));
  const double unit = std::ldexp(1.0, std::ilogb(largest) + 1 - kBits);
  double sum = 0;
  for (const double x : addends) sum += std::trunc(x / unit) * unit;
  const float nearest = static_cast<float>(sum);
  return std::abs(static_cast<double>(nearest)) > std::abs(sum) ? std::nextafter(nearest, 0.0f) : nearest;
}

void compute_mma(Collective collective, const WarpParts& lanes) {
  if (collective == Collective::mma_bf16) {
    multiply_halves<from_bf16>(lanes);
  } else if (collective == Collective::mma_f16) {
    multiply_halves<from_f16>(lanes);
  } else {
    multiply_tf32(lanes);
  }
}

void compute_ldmatrix(bool transposed, const WarpParts& lanes) {
  uint16_t matrix[4][8][8];
  for (size_t lane = 0; lane < 32; ++lane) std::memcpy(matrix[lane / 8][lane % 8], lanes[lane]->row, 16);
  for (size_t lane = 0; lane < 32; ++lane) {
    const size_t row = lane / 4, pair = lane % 4 * 2;
    for (size_t m = 0; m < 4; ++m) {
      const uint32_t low = transposed ? matrix[m][pair][row] : matrix[m][row][pair];
      const uint32_t high = transposed ? matrix[m][pair + 1][row] : matrix[m][row][pair + 1];
      lanes[lane]->r[m] = high << 16 | low;
    }
  }
}

void compute_stmatrix_trans(const WarpParts& lanes) {
  for (size_t lane = 0; lane < 32; ++lane) {
    const size_t column = lane / 4, pair = lane % 4 * 2;
    for (size_t m = 0; m < 4; ++m) {
      for (size_t i = 0; i < 2; ++i) {
        const auto half = static_cast<uint16_t>(lanes[lane]->r[m] >> (16 * i));
        auto* const row = static_cast<std::byte*>(const_cast<void*>(lanes[m * 8 + pair + i]->row));
        std::memcpy(row + 2 * column, &half, 2);
      }
    }
  }
}

}  // namespace difuse::testing
