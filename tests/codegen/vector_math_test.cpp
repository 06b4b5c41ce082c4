#include "codegen/cpu/vector_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace difuse::codegen {
namespace {

namespace vm = vector_math;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// |got - exact| in units of the last place of a float near `exact`.
double ulps(float got, double exact) {
  const double largest = std::numeric_limits<float>::max();
  if (std::abs(exact) > largest)
    return got == (exact > 0 ? kInfinity : -kInfinity) || std::abs(got) > 3.4028e38f ? 0.0 : 1e9;
  if (!std::isfinite(got)) return 1e9;
  int exponent = 0;
  std::frexp(exact, &exponent);
  return std::abs(static_cast<double>(got) - exact) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

/// The largest error over every 1,021st float within [low, high], both signs and denormals included.
template <class Function, class Exact>
double worst(Function function, Exact exact, float low, float high) {
  double largest = 0.0;
  for (uint64_t bits = 0; bits < 0x100000000ull; bits += 1021) {
    const float x = vm::float_of(static_cast<uint32_t>(bits));
    if (!(x >= low && x <= high)) continue;
    largest = std::max(largest, ulps(function(x), exact(static_cast<double>(x))));
  }
  return largest;
}

constexpr float kLargest = std::numeric_limits<float>::max();

TEST(VectorMath, StaysWithinItsErrorOverAllFloats) {
  EXPECT_LT(worst([](float x) { return vm::exp(x); }, [](double x) { return std::exp(x); }, -kLargest, kLargest), 2.0);
  EXPECT_LT(worst([](float x) { return vm::expm1(x); }, [](double x) { return std::expm1(x); }, -kLargest, kLargest),
            2.0);
  EXPECT_LT(worst([](float x) { return vm::log(x); }, [](double x) { return std::log(x); }, 1e-45f, kLargest), 2.0);
  EXPECT_LT(worst([](float x) { return vm::tanh(x); }, [](double x) { return std::tanh(x); }, -kLargest, kLargest),
            3.0);
  const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
  EXPECT_LT(worst([](float x) { return vm::sigmoid(x); }, sigmoid, -kLargest, kLargest), 3.0);
  EXPECT_LT(worst([](float x) { return vm::silu(x); }, [&](double x) { return x * sigmoid(x); }, -80.0f, kLargest),
            4.0);
  EXPECT_EQ(worst([](float x) { return vm::floor(x); }, [](double x) { return std::floor(x); }, -kLargest, kLargest),
            0.0);
}

TEST(VectorMath, SineAndCosineHoldToTenThousandRadians) {
  double largest = 0.0;
  for (int i = -2000000; i <= 2000000; ++i) {
    const float x = static_cast<float>(i) * 0.005f;
    largest = std::max(largest, std::abs(vm::sin(x) - std::sin(static_cast<double>(x))));
    largest = std::max(largest, std::abs(vm::cos(x) - std::cos(static_cast<double>(x))));
  }
  EXPECT_LT(largest, 1e-7);
  // Where the sine is near 0 its relative error counts.
  for (int i = 1; i < 3000; ++i) {
    const float x = static_cast<float>(3.14159265358979323846 * i);
    const double exact = std::sin(static_cast<double>(x));
    EXPECT_LT(std::abs(vm::sin(x) - exact), 1e-6 * std::abs(exact)) << x;
  }
  for (const float x : {1e6f, 1e9f, 1e20f, 3e38f}) EXPECT_LE(std::abs(vm::sin(x)), 1.0f) << x;
}

TEST(VectorMath, PowerFollowsC) {
  const float values[] = {0.0f,      -0.0f,      1.0f, -1.0f, 0.5f,        -0.5f,   2.0f,    -2.0f,       3.0f,
                          -3.0f,     0.999f,     7.0f, -7.0f, 1e-42f,      1e-30f,  1e30f,   16777216.0f, kLargest,
                          kInfinity, -kInfinity, kNaN, 0.1f,  1.0f / 7.0f, 1000.0f, -1000.0f};
  for (const float x : values) {
    for (const float y : values) {
      const double exact = std::pow(static_cast<double>(x), static_cast<double>(y));
      const float got = vm::pow(x, y);
      if (std::isnan(exact)) {
        EXPECT_TRUE(std::isnan(got)) << x << "^" << y;
      } else if (std::isinf(static_cast<float>(exact)) || exact == 0.0) {
        EXPECT_EQ(got, static_cast<float>(exact)) << x << "^" << y;
        EXPECT_EQ(std::signbit(got), std::signbit(exact)) << x << "^" << y;
      } else {
        EXPECT_LE(ulps(got, exact), 1.0) << x << "^" << y;
      }
    }
  }
}

TEST(VectorMath, LimitsAreExact) {
  EXPECT_EQ(vm::exp(-kInfinity), 0.0f);
  EXPECT_EQ(vm::exp(kInfinity), kInfinity);
  EXPECT_EQ(vm::exp(1000.0f), kInfinity);
  EXPECT_EQ(vm::exp(0.0f), 1.0f);
  EXPECT_GT(vm::exp(-100.0f), 0.0f);  // A denormal.
  EXPECT_EQ(vm::expm1(-kInfinity), -1.0f);
  EXPECT_EQ(vm::expm1(kInfinity), kInfinity);
  EXPECT_TRUE(std::signbit(vm::expm1(-0.0f)));
  EXPECT_EQ(vm::log(0.0f), -kInfinity);
  EXPECT_EQ(vm::log(kInfinity), kInfinity);
  EXPECT_EQ(vm::log(1.0f), 0.0f);
  EXPECT_TRUE(std::isnan(vm::log(-1.0f)));
  EXPECT_EQ(vm::tanh(-kInfinity), -1.0f);
  EXPECT_EQ(vm::tanh(kInfinity), 1.0f);
  EXPECT_TRUE(std::signbit(vm::tanh(-0.0f)));
  EXPECT_EQ(vm::sigmoid(-kInfinity), 0.0f);
  EXPECT_EQ(vm::sigmoid(kInfinity), 1.0f);
  EXPECT_TRUE(std::isnan(vm::sin(kInfinity)));
  for (const auto function :
       {+[](float x) { return vm::exp(x); }, +[](float x) { return vm::expm1(x); }, +[](float x) { return vm::log(x); },
        +[](float x) { return vm::tanh(x); }, +[](float x) { return vm::sigmoid(x); },
        +[](float x) { return vm::silu(x); }, +[](float x) { return vm::sin(x); }, +[](float x) { return vm::cos(x); },
        +[](float x) { return vm::floor(x); }, +[](float x) { return vm::round_tf32(x); }}) {
    EXPECT_TRUE(std::isnan(function(kNaN)));
    EXPECT_TRUE(std::isnan(function(-kNaN)));
  }
}

TEST(VectorMath, Tf32RoundsTiesAwayFromZero) {
  const float step = 1.0f / 1024;
  EXPECT_EQ(vm::round_tf32(1.0f + step / 2), 1.0f + step);
  EXPECT_EQ(vm::round_tf32(-1.0f - step / 2), -1.0f - step);
  EXPECT_EQ(vm::round_tf32(std::nextafter(1.0f + step / 2, 0.0f)), 1.0f);
  EXPECT_EQ(vm::round_tf32(kLargest), kInfinity);
  EXPECT_EQ(vm::round_tf32(-kInfinity), -kInfinity);
  EXPECT_TRUE(std::isnan(vm::round_tf32(vm::float_of(0x7fffffffu))));
}

}  // namespace
}  // namespace difuse::codegen
