#include "codegen/cpu/block_ops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "codegen/cpu/vector_math.h"

namespace difuse::codegen {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

std::vector<Isa> all_isas() {
  std::vector<Isa> isas;
  for (int isa = 0; isa <= static_cast<int>(best_isa()); ++isa) isas.push_back(static_cast<Isa>(isa));
  return isas;
}

std::vector<float> random_values(size_t count, unsigned seed, float low = -4.0f, float high = 4.0f) {
  std::minstd_rand generator(seed + 1);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(generator);
  return values;
}

/// Random values between which every kind of special value appears.
std::vector<float> mixed_values(size_t count, unsigned seed) {
  std::vector<float> values = random_values(count, seed);
  const float special[] = {0.0f,   -0.0f,   1.0f,  -1.0f,  kInfinity, -kInfinity, kNaN,
                           1e-42f, -1e-42f, 1e30f, -1e30f, 100.0f,    -100.0f};
  std::minstd_rand generator(seed + 77);
  for (size_t i = 0; i < count; i += 3) values[i] = special[generator() % std::size(special)];
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;  // Which NaN it is, is not promised.
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0) return false;
  }
  return true;
}

using Definition = std::function<double(double, double, double)>;
const std::map<std::string, Definition>& definitions() {
  static const std::map<std::string, Definition> table = {
      {"neg", [](double a, double, double) { return -a; }},
      {"abs", [](double a, double, double) { return std::abs(a); }},
      {"exp", [](double a, double, double) { return std::exp(a); }},
      {"expm1", [](double a, double, double) { return std::expm1(a); }},
      {"log", [](double a, double, double) { return std::log(a); }},
      {"sqrt", [](double a, double, double) { return std::sqrt(a); }},
      {"rsqrt", [](double a, double, double) { return 1.0 / std::sqrt(a); }},
      {"recip", [](double a, double, double) { return 1.0 / a; }},
      {"sin", [](double a, double, double) { return std::sin(a); }},
      {"cos", [](double a, double, double) { return std::cos(a); }},
      {"tanh", [](double a, double, double) { return std::tanh(a); }},
      {"sigmoid", [](double a, double, double) { return 1.0 / (1.0 + std::exp(-a)); }},
      {"silu", [](double a, double, double) { return a / (1.0 + std::exp(-a)); }},
      {"square", [](double a, double, double) { return a * a; }},
      {"floor", [](double a, double, double) { return std::floor(a); }},
      {"is_finite", [](double a, double, double) { return std::isfinite(a) ? 1.0 : 0.0; }},
      {"round_tf32", [](double a, double, double) { return a; }},  // Within its own, wider bound.
      {"add", [](double a, double b, double) { return a + b; }},
      {"sub", [](double a, double b, double) { return a - b; }},
      {"mul", [](double a, double b, double) { return a * b; }},
      {"div", [](double a, double b, double) { return a / b; }},
      {"min", [](double a, double b, double) { return a < b ? a : b; }},
      {"max", [](double a, double b, double) { return a > b ? a : b; }},
      {"pow", [](double a, double b, double) { return std::pow(a, b); }},
      {"less", [](double a, double b, double) { return a < b ? 1.0 : 0.0; }},
      {"less_equal", [](double a, double b, double) { return a <= b ? 1.0 : 0.0; }},
      {"equal", [](double a, double b, double) { return a == b ? 1.0 : 0.0; }},
      {"select", [](double c, double a, double b) { return c != 0.0 ? a : b; }},
  };
  return table;
}

TEST(BlockOps, EveryOpMatchesItsDefinition) {
  const BlockOps ops;
  ASSERT_EQ(definitions().size(), static_cast<size_t>(kBlockOpCount));
  for (int i = 0; i < kBlockOpCount; ++i) {
    const BlockOp op = static_cast<BlockOp>(i);
    const std::string name(block_op_name(op));
    const Definition& definition = definitions().at(name);
    const bool positive = name == "log" || name == "sqrt" || name == "rsqrt" || name == "pow";
    std::vector<float> operands[3];
    for (unsigned k = 0; k < 3; ++k) operands[k] = random_values(1000, k, positive ? 1e-3f : -4.0f);
    for (size_t j = 0; j < 1000; j += 5) operands[1][j] = operands[0][j];  // Something to be equal.
    for (size_t j = 0; j < 1000; j += 4) operands[0][j] = positive ? 1.0f : 0.25f;
    if (name == "select") {
      for (size_t j = 0; j < 1000; j += 2) operands[0][j] = 0.0f;
    }
    const double bound = name == "round_tf32" ? 0x1p-11 : 5e-7;
    std::vector<float> out(1000);
    for (unsigned scalars = 0; scalars < 1u << block_op_arity(op); ++scalars) {
      const float* in[] = {operands[0].data(), operands[1].data(), operands[2].data()};
      ops.elementwise(op, scalars)(in, out.data(), 1000);
      for (size_t j = 0; j < 1000; ++j) {
        double x[3];
        for (unsigned k = 0; k < 3; ++k) x[k] = operands[k][(scalars >> k & 1u) != 0 ? 0 : j];
        const double expected = definition(x[0], x[1], x[2]);
        ASSERT_NEAR(out[j], expected, bound * std::abs(expected) + 1e-7) << name << " " << scalars << " at " << j;
      }
    }
  }
}

TEST(BlockOps, NamesFindTheirOps) {
  EXPECT_EQ(find_block_op("less_equal"), BlockOp::less_equal);
  EXPECT_EQ(find_block_op("conv_fprop"), std::nullopt);
  EXPECT_EQ(block_op_arity(BlockOp::select), 3);
}

TEST(BlockOps, NanGoesToTheSecondOperandsSide) {
  const BlockOps ops;
  const float a[] = {kNaN, 1.0f, kNaN}, b[] = {1.0f, kNaN, kNaN};
  const float* in[] = {a, b};
  for (const BlockOp op : {BlockOp::min, BlockOp::max}) {
    float out[3];
    ops.elementwise(op)(in, out, 3);
    EXPECT_EQ(out[0], 1.0f);
    EXPECT_TRUE(std::isnan(out[1]) && std::isnan(out[2]));
  }
  for (const BlockOp op : {BlockOp::less, BlockOp::less_equal, BlockOp::equal}) {
    float out[3];
    ops.elementwise(op)(in, out, 3);
    EXPECT_EQ(out[0] + out[1] + out[2], 0.0f);
  }
}

// The vector body and its scalar tail, every alignment and every instruction set give one value.
TEST(BlockOps, BitsDependOnNeitherPlaceNorInstructionSet) {
  const BlockOps baseline(Isa::baseline);
  constexpr size_t kCount = 96;
  std::vector<float> operands[3];
  for (unsigned k = 0; k < 3; ++k) operands[k] = mixed_values(kCount, k);
  for (int i = 0; i < kBlockOpCount; ++i) {
    const BlockOp op = static_cast<BlockOp>(i);
    for (unsigned scalars = 0; scalars < 1u << block_op_arity(op); ++scalars) {
      std::vector<float> expected(kCount);
      for (size_t j = 0; j < kCount; ++j) {
        const float* in[3];
        for (unsigned k = 0; k < 3; ++k) in[k] = operands[k].data() + ((scalars >> k & 1u) != 0 ? 4 : j);
        baseline.elementwise(op, scalars)(in, &expected[j], 1);
      }
      for (const Isa isa : all_isas()) {
        const BlockOps ops(isa);
        for (size_t length = 1; length <= 70; ++length) {
          const size_t offset = length % 23;
          const float* in[3];
          for (unsigned k = 0; k < 3; ++k) in[k] = operands[k].data() + ((scalars >> k & 1u) != 0 ? 4 : offset);
          std::vector<float> out(length + 1, 7.0f);
          ops.elementwise(op, scalars)(in, out.data(), static_cast<int64_t>(length));
          ASSERT_EQ(out.back(), 7.0f);
          out.pop_back();
          const auto from = expected.begin() + static_cast<std::ptrdiff_t>(offset);
          ASSERT_TRUE(same_bits(out, std::vector<float>(from, from + static_cast<std::ptrdiff_t>(length))))
              << block_op_name(op) << " " << scalars << " " << isa_name(isa) << " " << length;
        }
      }
    }
  }
}

TEST(BlockOps, WorksInPlace) {
  const BlockOps ops;
  std::vector<float> a = random_values(1000, 1), b = random_values(1000, 2), expected(1000);
  const float* in[] = {a.data(), b.data()};
  ops.elementwise(BlockOp::mul)(in, expected.data(), 1000);
  ops.elementwise(BlockOp::mul)(in, b.data(), 1000);
  EXPECT_TRUE(same_bits(b, expected));
}

TEST(BlockOps, ReductionsKeepTheirOrder) {
  for (const size_t n : {0u, 1u, 5u, 16u, 17u, 31u, 64u, 1000u, 1024u}) {
    const std::vector<float> x = random_values(n + 40, 1), y = random_values(n + 40, 2);
    float lanes[16] = {}, products[16] = {};
    float largest = -kInfinity;
    for (size_t i = 0; i < n; ++i) {
      lanes[i % 16] += x[3 + i];
      products[i % 16] += x[3 + i] * y[i];
      largest = std::max(largest, x[3 + i]);
    }
    for (size_t half = 8; half > 0; half /= 2) {
      for (size_t j = 0; j < half; ++j) {
        lanes[j] += lanes[j + half];
        products[j] += products[j + half];
      }
    }
    for (const Isa isa : all_isas()) {
      const BlockOps ops(isa);
      EXPECT_EQ(ops.sum(x.data() + 3, static_cast<int64_t>(n)), lanes[0]) << n << isa_name(isa);
      EXPECT_EQ(ops.dot(x.data() + 3, y.data(), static_cast<int64_t>(n)), products[0]) << n << isa_name(isa);
      EXPECT_EQ(ops.max(x.data() + 3, static_cast<int64_t>(n)), largest) << n << isa_name(isa);
    }
  }
}

TEST(BlockOps, ColumnSumsRunDownTheRows) {
  for (const int64_t channels : {1, 3, 17, 32, 100}) {
    const int64_t rows = 49;
    const auto x = random_values(static_cast<size_t>(rows * channels), 1), y = random_values(x.size(), 2);
    const std::vector<float> start = random_values(static_cast<size_t>(channels), 3);
    std::vector<float> sums = start, dots = start;
    for (int64_t i = 0; i < rows * channels; ++i) {
      sums[static_cast<size_t>(i % channels)] += x[static_cast<size_t>(i)];
      dots[static_cast<size_t>(i % channels)] += x[static_cast<size_t>(i)] * y[static_cast<size_t>(i)];
    }
    for (const Isa isa : all_isas()) {
      const BlockOps ops(isa);
      std::vector<float> got_sums = start, got_dots = start;
      ops.column_sums(x.data(), rows, channels, got_sums.data());
      ops.column_dots(x.data(), y.data(), rows, channels, got_dots.data());
      EXPECT_TRUE(same_bits(got_sums, sums)) << channels << isa_name(isa);
      EXPECT_TRUE(same_bits(got_dots, dots)) << channels << isa_name(isa);
    }
  }
}

// A mean a thousand times the deviation: a one-pass formula would lose every digit of M2.
TEST(BlockOps, StripMomentsSurviveALargeMean) {
  for (const int64_t channels : {1, 5, 16, 33, 96}) {
    for (const auto& [height, width] : {std::pair<int64_t, int64_t>(16, 8), std::pair<int64_t, int64_t>(7, 7),
                                        std::pair<int64_t, int64_t>(12, 4), std::pair<int64_t, int64_t>(40, 1)}) {
      const int64_t pitch = (width + 3) * channels;
      std::vector<float> image = random_values(static_cast<size_t>(pitch * height), 4);
      for (float& value : image) value += 4000.0f;
      std::vector<float> first_mean, first_m2;
      for (const Isa isa : all_isas()) {
        std::vector<float> mean(static_cast<size_t>(channels)), m2(mean.size());
        BlockOps(isa).strip_moments(image.data(), pitch, height, width, channels, mean.data(), m2.data());
        for (int64_t c = 0; c < channels; ++c) {
          double exact_mean = 0.0, exact_m2 = 0.0;
          const auto each = [&](const auto& visit) {
            for (int64_t y = 0; y < height; ++y) {
              for (int64_t x = 0; x < width; ++x)
                visit(double(image[static_cast<size_t>(y * pitch + x * channels + c)]));
            }
          };
          each([&](double value) { exact_mean += value / static_cast<double>(height * width); });
          each([&](double value) { exact_m2 += (value - exact_mean) * (value - exact_mean); });
          EXPECT_NEAR(mean[static_cast<size_t>(c)], exact_mean, 1e-6 * exact_mean);
          EXPECT_NEAR(m2[static_cast<size_t>(c)], exact_m2, 1e-5 * exact_m2);
        }
        if (first_mean.empty()) {
          first_mean = mean;
          first_m2 = m2;
        }
        EXPECT_TRUE(same_bits(mean, first_mean) && same_bits(m2, first_m2)) << channels << isa_name(isa);
      }
    }
  }
}

uint16_t nearest_16_bits(float x, int mantissa_bits, int least_exponent, double largest) {
  if (std::isnan(x)) return mantissa_bits == 7 ? 0x7fc0 : 0x7e00;
  int exponent = 0;
  const double magnitude = std::abs(static_cast<double>(x));
  std::frexp(magnitude, &exponent);
  const double step = std::ldexp(1.0, std::max(exponent - 1, least_exponent) - mantissa_bits);
  const double rounded = std::nearbyint(magnitude / step) * step;  // Ties to even.
  uint32_t bits = 0;
  if (rounded > largest) {
    bits = mantissa_bits == 7 ? 0x7f80 : 0x7c00;
  } else if (rounded > 0.0) {
    std::frexp(rounded, &exponent);
    const int clipped = std::max(exponent - 1, least_exponent);
    const double units = std::ldexp(rounded, mantissa_bits - clipped);
    bits = static_cast<uint32_t>(units) + (static_cast<uint32_t>(clipped - least_exponent) << mantissa_bits);
  }
  return static_cast<uint16_t>(bits | (std::signbit(x) ? 0x8000u : 0u));
}

TEST(BlockOps, SixteenBitFormatsRoundToNearestEven) {
  std::vector<float> values;
  for (uint64_t bits = 0; bits < 0x100000000ull; bits += 65521)
    values.push_back(vector_math::float_of(static_cast<uint32_t>(bits)));
  for (int i = 0; i < 20000; ++i) values.push_back(static_cast<float>(i) * 0x1p-26f);       // f16 denormals.
  for (int i = 0; i < 4096; ++i) values.push_back(1.0f + static_cast<float>(i) / 4096.0f);  // f16 ties.
  for (int i = 0; i < 64; ++i) values.push_back(65500.0f + static_cast<float>(i));          // f16 overflow.
  for (const float value : {0.0f, -0.0f, kInfinity, -kInfinity, kNaN, 3.4e38f, -3.4e38f}) values.push_back(value);
  const double largest_bf16 = std::ldexp(255.0, 120);
  for (const Isa isa : all_isas()) {
    const BlockOps ops(isa);
    std::vector<uint16_t> bf16(values.size()), f16(values.size());
    ops.f32_to_bf16(values.data(), bf16.data(), static_cast<int64_t>(values.size()));
    ops.f32_to_f16(values.data(), f16.data(), static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        ASSERT_EQ(bf16[i] & 0x7fc0, 0x7fc0);
        ASSERT_EQ(f16[i] & 0x7e00, 0x7e00);
        continue;
      }
      ASSERT_EQ(bf16[i], nearest_16_bits(values[i], 7, -126, largest_bf16)) << values[i];
      ASSERT_EQ(f16[i], nearest_16_bits(values[i], 10, -14, 65504.0)) << values[i];
    }
  }
}

TEST(BlockOps, SixteenBitFormatsSurviveTheRoundTrip) {
  std::vector<uint16_t> all(65536), back(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(65536);
  for (const Isa isa : all_isas()) {
    const BlockOps ops(isa);
    ops.f16_to_f32(all.data(), wide.data(), 65536);
    ops.f32_to_f16(wide.data(), back.data(), 65536);
    EXPECT_EQ(wide[0x3c00], 1.0f);
    EXPECT_EQ(wide[0x0001], 0x1p-24f);
    for (size_t i = 0; i < all.size(); ++i) {
      if (std::isnan(wide[i])) continue;
      ASSERT_EQ(back[i], all[i]);
    }
    ops.bf16_to_f32(all.data(), wide.data(), 65536);
    ops.f32_to_bf16(wide.data(), back.data(), 65536);
    for (size_t i = 0; i < all.size(); ++i) {
      if (std::isnan(wide[i])) continue;
      ASSERT_EQ(back[i], all[i]);
    }
  }
}

TEST(BlockOps, IntegersSaturate) {
  const std::vector<float> x = {0.0f,          1.9f,          -1.9f,         255.0f,     256.0f, 3e9f,
                                5e9f,          -3e9f,         kInfinity,     -kInfinity, kNaN,   2147483520.0f,
                                2147483648.0f, 4294967040.0f, 4294967296.0f, 254.99f,    7.0f,   -0.0f};
  const std::vector<int32_t> i32 = {0,          1,
                                    -1,         255,
                                    256,        2147483647,
                                    2147483647, -2147483647 - 1,
                                    2147483647, -2147483647 - 1,
                                    0,          2147483520,
                                    2147483647, 2147483647,
                                    2147483647, 254,
                                    7,          0};
  const std::vector<uint32_t> u32 = {0,           1,           0,           255, 256, 3000000000u,
                                     4294967295u, 0,           4294967295u, 0,   0,   2147483520u,
                                     2147483648u, 4294967040u, 4294967295u, 254, 7,   0};
  const std::vector<uint8_t> u8 = {0, 1, 0, 255, 255, 255, 255, 0, 255, 0, 0, 255, 255, 255, 255, 254, 7, 0};
  const int64_t n = static_cast<int64_t>(x.size());
  for (const Isa isa : all_isas()) {
    const BlockOps ops(isa);
    std::vector<int32_t> got_i32(x.size());
    std::vector<uint32_t> got_u32(x.size());
    std::vector<uint8_t> got_u8(x.size());
    ops.f32_to_i32(x.data(), got_i32.data(), n);
    ops.f32_to_u32(x.data(), got_u32.data(), n);
    ops.f32_to_u8(x.data(), got_u8.data(), n);
    EXPECT_EQ(got_i32, i32) << isa_name(isa);
    EXPECT_EQ(got_u32, u32) << isa_name(isa);
    EXPECT_EQ(got_u8, u8) << isa_name(isa);
    std::vector<float> back(x.size());
    ops.u32_to_f32(u32.data(), back.data(), n);
    for (size_t i = 0; i < back.size(); ++i) EXPECT_EQ(back[i], static_cast<float>(u32[i]));
    ops.i32_to_f32(i32.data(), back.data(), n);
    for (size_t i = 0; i < back.size(); ++i) EXPECT_EQ(back[i], static_cast<float>(i32[i]));
    ops.u8_to_f32(u8.data(), back.data(), n);
    for (size_t i = 0; i < back.size(); ++i) EXPECT_EQ(back[i], static_cast<float>(u8[i]));
  }
}

TEST(BlockOps, FillsAndCopies) {
  const BlockOps ops;
  const std::vector<float> x = random_values(37, 1);
  std::vector<float> out(38, 5.0f);
  ops.copy(x.data(), out.data(), 37);
  EXPECT_TRUE(std::equal(x.begin(), x.end(), out.begin()));
  ops.fill(out.data(), 2.0f, 37);
  EXPECT_EQ(std::count(out.begin(), out.end(), 2.0f), 37);
  EXPECT_EQ(out[37], 5.0f);
}

}  // namespace
}  // namespace difuse::codegen
