#include "models/diffusion/learned_variance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/diffusion/ddpm.h"
#include "passes/autodiff.h"
#include "tests/models/model_checks.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/temp_folder.h"

namespace difuse::models {
namespace {

using ir::DType;

/// The same term from the definitions: Ho et al., 2020, equations 5 to 7 and 13, in bits.
double by_definition(const DiffusionConfig& diffusion, double x0, double noise, double eps, double output, size_t t) {
  const std::vector<double> beta = betas(diffusion), bar = alpha_bars(diffusion);
  auto before = [&](size_t i) { return i == 0 ? 1.0 : bar[i - 1]; };
  const size_t v = std::max<size_t>(t, 1);
  const double variance = beta[v] * (1 - before(v)) / (1 - bar[v]);
  const double share = (output + 1) / 2;
  const double model_log_variance = share * std::log(beta[t]) + (1 - share) * std::log(variance);
  const double x = std::sqrt(bar[t]) * x0 + std::sqrt(1 - bar[t]) * noise;
  auto posterior_mean = [&](double image) {
    return beta[t] * std::sqrt(before(t)) / (1 - bar[t]) * image +
           (1 - before(t)) * std::sqrt(1 - beta[t]) / (1 - bar[t]) * x;
  };
  const double mean = posterior_mean((x - std::sqrt(1 - bar[t]) * eps) / std::sqrt(bar[t]));
  if (t > 0) {
    const double gap = posterior_mean(x0) - mean;
    return (model_log_variance - std::log(variance) - 1 + (variance + gap * gap) / std::exp(model_log_variance)) / 2 /
           std::numbers::ln2;
  }
  auto below = [&](double edge) {
    const double z = (edge - mean) / std::exp(model_log_variance / 2);
    return (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (z + 0.044715 * z * z * z))) / 2;
  };
  const double upper = below(x0 + 1 / 255.0), lower = below(x0 - 1 / 255.0);
  const double likelihood = x0 < -0.999 ? upper : x0 > 0.999 ? 1 - lower : upper - lower;
  return -std::log(std::max(likelihood, 1e-12)) / std::numbers::ln2;
}

/// One image per timestep; the elements of an image differ in x0, error and output.
class LearnedVariance : public ::testing::TestWithParam<DiffusionConfig> {
 protected:
  static constexpr int64_t kSide = 6;

  void SetUp() override {
    const int64_t last = GetParam().timesteps - 1;
    timesteps_ = {0, 0, 1, 2, last / 2, last - 1, last};
    const ir::Shape shape{static_cast<int64_t>(timesteps_.size()), kSide, kSide, 1};
    const int64_t count = ir::element_count(shape);
    TestNumbers numbers(5);
    std::vector<double> x0(static_cast<size_t>(count));
    for (size_t i = 0; i < x0.size(); ++i) {  // every third element is the darkest or the brightest
      x0[i] = i % 6 == 0 ? -1 : i % 6 == 3 ? 1 : std::floor((numbers() + 1) * 128) / 127.5 - 1;
    }
    // f32 throughout, so that the CPU sees the same numbers.
    auto draw = [&](double scale) {
      std::vector<double> values = numbers.vector(count, scale);
      for (double& value : values) value = static_cast<float>(value);
      return tensor_f32(shape, values);
    };
    for (double& value : x0) value = static_cast<float>(value);
    inputs_ = {{"x0", tensor_f32(shape, x0)}, {"error", draw(2)}, {"output", draw(1.5)}};
    ir::Tensor t({DType::i32, {shape[0]}});
    for (size_t n = 0; n < timesteps_.size(); ++n) t.data[n] = static_cast<double>(timesteps_[n]);
    inputs_["t"] = t;

    ir::Builder build(graph_);
    const ir::Type type{DType::f32, shape};
    const ir::Value error = build.input("error", type), output = build.input("output", type);
    const VariationalBound bound = variational_bound(build, GetParam(), build.input("x0", type), error, output,
                                                     build.input("t", {DType::i32, {shape[0]}}));
    graph_.set_output("bits", bound.bits);
    const ir::Value wanted[] = {error, output}, held[] = {bound.distance};
    const auto gradients = passes::differentiate(build, build.sum_all(bound.bits), wanted, held);
    graph_.set_output("d_error", gradients[0]);
    graph_.set_output("d_output", gradients[1]);
  }

  double expected(size_t i, double output_moved_by = 0) const {
    constexpr double kNoise = 0.3;  // the bound depends on the error alone
    const auto t = static_cast<size_t>(timesteps_[i / (kSide * kSide)]);
    return by_definition(GetParam(), inputs_.at("x0").data[i], kNoise, kNoise + inputs_.at("error").data[i],
                         inputs_.at("output").data[i] + output_moved_by, t);
  }

  std::vector<int64_t> timesteps_;
  ir::TensorMap inputs_;
  ir::Graph graph_{"bound"};
};

TEST_P(LearnedVariance, IsTheTermOfTheBound) {
  const std::vector<double> bits = ir::run_reference(graph_, inputs_, {}).outputs.at("bits").data;
  for (size_t i = 0; i < bits.size(); ++i) {
    ASSERT_NEAR(bits[i], expected(i), 1e-8 * std::max(1.0, std::abs(bits[i])))
        << i << ", t " << timesteps_[i / (kSide * kSide)];
  }
}

TEST_P(LearnedVariance, TeachesTheVarianceAndNotTheMean) {
  const ir::TensorMap outputs = ir::run_reference(graph_, inputs_, {}).outputs;
  for (double d : outputs.at("d_error").data) ASSERT_EQ(d, 0);
  const std::vector<double>& gradient = outputs.at("d_output").data;
  constexpr size_t kEach = kSide * kSide;
  for (size_t first = 0; first < gradient.size(); first += kEach) {
    double largest = 0;  // of the image: timesteps differ by orders of magnitude
    for (size_t i = first; i < first + kEach; ++i) largest = std::max(largest, std::abs(gradient[i]));
    for (size_t i = first; i < first + kEach; ++i) {
      constexpr double kMove = 1e-4, kCancellation = 1e-10;
      ASSERT_NEAR(gradient[i], (expected(i, kMove) - expected(i, -kMove)) / (2 * kMove), 1e-6 * largest + kCancellation)
          << i << ", t " << timesteps_[first / kEach];
    }
  }
}

TEST_P(LearnedVariance, KeepsItsDigitsInSinglePrecision) {
  testing::expect_near_reference(graph_, testing::run_cpu(graph_, inputs_), inputs_, {}, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Schedules, LearnedVariance,
                         ::testing::Values(DiffusionConfig{NoiseSchedule::linear, 1000},
                                           DiffusionConfig{NoiseSchedule::cosine, 1000},
                                           DiffusionConfig{NoiseSchedule::linear, 25}),
                         [](const auto& i) {
                           return std::string(to_string(i.param.schedule)) + std::to_string(i.param.timesteps);
                         });

TEST(LearnedVarianceTables, AreThoseOfThePosterior) {
  const DiffusionConfig diffusion{NoiseSchedule::cosine, 50};
  const LearnedVarianceTables tables = learned_variance_tables(diffusion);
  const std::vector<double> beta = betas(diffusion), bar = alpha_bars(diffusion);
  EXPECT_NEAR(tables.log_range[7], std::log((1 - bar[7]) / (1 - bar[6])), 1e-12);
  EXPECT_NEAR(tables.log_range[0], std::log(beta[0] / (beta[1] * (1 - bar[0]) / (1 - bar[1]))), 1e-12);
}

TEST(LearnedVarianceTables, OneTimestepHasNoVariance) {
  EXPECT_CONTAINS(test::error_of([] { learned_variance_tables({NoiseSchedule::cosine, 1}); }), "choose 2 or more");
}

}  // namespace
}  // namespace difuse::models
