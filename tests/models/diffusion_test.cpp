#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "ir/text.h"
#include "ir/verify.h"
#include "models/diffusion/ddpm.h"
#include "models/diffusion/samplers.h"
#include "models/presets.h"
#include "models/unet.h"
#include "tests/models/model_checks.h"
#include "tests/support/temp_folder.h"

namespace difuse::models {
namespace {

using ir::DType;
constexpr DiffusionConfig kLinear{NoiseSchedule::linear, 1000}, kCosine{NoiseSchedule::cosine, 1000};
constexpr DiffusionConfig kEdm{.process = Process::edm};

TEST(Ddpm, LinearSchedule) {
  const std::vector<double> beta = betas(kLinear), bar = alpha_bars(kLinear);
  EXPECT_DOUBLE_EQ(beta.front(), 1e-4);
  EXPECT_DOUBLE_EQ(beta.back(), 0.02);
  EXPECT_NEAR(beta[500], 1e-4 + 0.0199 * 500 / 999, 1e-17);
  double log_sum = 0;
  for (double b : beta) log_sum += std::log1p(-b);
  EXPECT_NEAR(std::log(bar.back()), log_sum, 1e-12);
  EXPECT_NEAR(bar.back(), 4.0358e-5, 1e-9);
  EXPECT_DOUBLE_EQ(betas({NoiseSchedule::linear, 100}).back(), 0.2);
}

TEST(Ddpm, EndsOfTheLinearSchedules) {
  DiffusionConfig config{NoiseSchedule::scaled_linear, 500};
  config.beta_start = 0.00085, config.beta_end = 0.012;
  const std::vector<double> beta = betas(config);
  EXPECT_DOUBLE_EQ(beta.front(), 2 * 0.00085);
  EXPECT_DOUBLE_EQ(beta.back(), 2 * 0.012);
  const double root = std::sqrt(0.00085) + (std::sqrt(0.012) - std::sqrt(0.00085)) * 100 / 499;
  EXPECT_NEAR(beta[100], 2 * root * root, 1e-15);
  config.schedule = NoiseSchedule::linear;
  EXPECT_NEAR(betas(config)[100], 2 * (0.00085 + 0.01115 * 100 / 499), 1e-15);
  config.timesteps = 12;
  EXPECT_CONTAINS(test::error_of([&] { check(config); }), "choose 13 to");
  config.beta_start = 0.1;
  EXPECT_CONTAINS(test::error_of([&] { check(config); }), "beta from 0.1 to 0.012");
}

TEST(Ddpm, CosineSchedule) {
  const std::vector<double> beta = betas(kCosine), bar = alpha_bars(kCosine);
  auto f = [](double s) { return std::pow(std::cos((s + 0.008) / 1.008 * std::numbers::pi / 2), 2); };
  for (int t : {0, 1, 400, 900, 998}) {
    EXPECT_NEAR(bar[static_cast<size_t>(t)], f((t + 1) / 1000.0) / f(0), 1e-12) << t;
  }
  EXPECT_EQ(beta.back(), 0.999);
}

TEST(DiffusionConfig, RefusesWhatHasNoMeaningTogether) {
  const auto refusal = [](auto change, int64_t classes = 0, bool learn_sigma = false) {
    DiffusionConfig config;
    change(config);
    return test::error_of([&] { check_model(config, classes, learn_sigma); });
  };
  using D = DiffusionConfig;
  const auto edm = [](auto change) {
    return [change](D& c) {
      c.process = Process::edm;
      change(c);
    };
  };
  EXPECT_CONTAINS(refusal(edm([](D& c) { c.prediction = Prediction::v; })), "prediction = v has no meaning in the edm");
  EXPECT_CONTAINS(refusal(edm([](D& c) { c.min_snr_gamma = 5; })), "min_snr_gamma = 5 has no meaning in the edm");
  EXPECT_CONTAINS(refusal(edm([](D& c) { c.rescale_timesteps = true; })), "rescale_timesteps = true");
  EXPECT_CONTAINS(refusal(edm([](D& c) { c.unit_timesteps = true; })), "unit_timesteps = true");
  EXPECT_CONTAINS(refusal([](D& c) { c.rescale_timesteps = c.unit_timesteps = true; }), "one or the other");
  EXPECT_CONTAINS(refusal(edm([](D& c) { c.sigma_data = 0; })), "sigma_data is 0");
  EXPECT_CONTAINS(refusal(edm([](D&) {}), 0, true), "learned variance");
  EXPECT_CONTAINS(refusal([](D& c) { c.min_snr_gamma = -1; }), "min_snr_gamma is -1");
  EXPECT_CONTAINS(refusal([](D& c) { c.label_dropout = 1; }), "label_dropout is 1");
  EXPECT_CONTAINS(refusal([](D& c) { c.label_dropout = 0.1; }, 1), "of a model with 1 classes");
}

TEST(Ddpm, RefusesTooFewTimesteps) {
  EXPECT_CONTAINS(test::error_of([] { check(DiffusionConfig{NoiseSchedule::linear, 20}); }), "choose 21 to");
  EXPECT_CONTAINS(test::error_of([] { check(DiffusionConfig{NoiseSchedule::cosine, 0}); }), "choose 1 to");
}

/// The timesteps that the network is told.
std::vector<double> visited(Spacing spacing, int64_t timesteps, int64_t steps) {
  SamplerConfig config;
  config.spacing = spacing;
  config.steps = steps;
  std::vector<double> times;
  for (const SamplerRow& row : sampler_rows(config, {NoiseSchedule::linear, timesteps})) times.push_back(row.time);
  return times;
}

TEST(Spacing, VisitsTheseTimesteps) {
  using enum Spacing;
  EXPECT_EQ(visited(linear, 1000, 1), (std::vector<double>{999}));
  EXPECT_EQ(visited(linear, 1000, 2), (std::vector<double>{999, 0}));
  EXPECT_EQ(visited(linear, 1000, 5), (std::vector<double>{999, 749, 500, 250, 0}));
  EXPECT_EQ(visited(trailing, 1000, 5), (std::vector<double>{999, 799, 599, 399, 199}));
  EXPECT_EQ(visited(trailing, 1000, 3), (std::vector<double>{999, 666, 332}));
  EXPECT_EQ(visited(trailing, 1000, 1), (std::vector<double>{999}));
  EXPECT_EQ(visited(leading, 1000, 5), (std::vector<double>{800, 600, 400, 200, 0}));
  EXPECT_EQ(visited(leading, 1000, 3), (std::vector<double>{666, 333, 0}));
  for (const Spacing spacing : {linear, trailing, leading}) {
    const std::vector<double> all = visited(spacing, 1000, 1000);
    for (size_t i = 0; i < 1000; ++i) EXPECT_EQ(all[i], 999.0 - static_cast<double>(i));
  }
}

TEST(Spacing, OfKarras) {
  SamplerConfig config = default_sampler(kEdm);
  config.steps = 5;
  const std::vector<double> sigmas = visited_sigmas(config, kEdm);
  // Karras et al., 2022, equation 5 for 80, 0.002, rho 7.
  const std::vector<double> wanted = {80, 17.5278, 2.51522, 0.169753, 0.002};
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(sigmas[i], wanted[i], 1e-5 * wanted[i]) << i;
  config.spacing = Spacing::linear;
  EXPECT_NEAR(visited_sigmas(config, kEdm)[2], 40.001, 1e-12);

  // Of a ddpm model: from its last timestep to its first, and between them.
  config = default_sampler(kLinear, SamplerKind::heun);
  const std::vector<SamplerRow> rows = sampler_rows(config, kLinear);
  EXPECT_EQ(rows.front().time, 999);
  EXPECT_EQ(rows.back().time, 0);
  EXPECT_EQ(rows.size(), 2 * 18u - 1);
  for (size_t i = 1; i < rows.size(); ++i) EXPECT_LE(rows[i].time, rows[i - 1].time);
}

TEST(Spacing, ChurnNeverAsksBeyondTheTimesteps) {
  SamplerConfig config = default_sampler(kLinear, SamplerKind::heun);
  config.churn = 100;
  const std::vector<SamplerRow> rows = sampler_rows(config, kLinear);
  EXPECT_EQ(rows.front().churn, 0);
  EXPECT_GT(rows[2].churn, 0);
  for (const SamplerRow& row : rows) EXPECT_LE(row.time, 999);
}

TEST(Samplers, RefusesSettingsThatCannotWork) {
  auto refusal = [](auto change, const DiffusionConfig& diffusion = kLinear) {
    SamplerConfig config = default_sampler(diffusion);
    change(config);
    return test::error_of([&] { check(config, diffusion); });
  };
  EXPECT_CONTAINS(refusal([](SamplerConfig& c) { c.steps = 0; }), "choose 1 to 1000 steps");
  EXPECT_CONTAINS(refusal([](SamplerConfig& c) { c.steps = 1001; }), "1001 sampling steps of a model with 1000");
  EXPECT_CONTAINS(refusal([](SamplerConfig& c) { c.steps = 1001; }, kEdm), "choose 1 to 1000 steps");
  EXPECT_CONTAINS(refusal([](SamplerConfig& c) { c.kind = SamplerKind::ddim, c.eta = 1.5; }), "eta is 1.5");
  EXPECT_CONTAINS(refusal([](SamplerConfig& c) { c.eta = 0.5; }), "eta has no meaning with the ddpm sampler");
  EXPECT_CONTAINS(refusal([](SamplerConfig& c) { c.churn = 1; }), "churn has no meaning with the ddpm sampler");
  EXPECT_CONTAINS(refusal([](SamplerConfig& c) { c.batch = 0; }), "batch of 0");
  EXPECT_CONTAINS(refusal([](SamplerConfig& c) { c.guidance = 2; }), "train with label_dropout");
  EXPECT_CONTAINS(refusal([](SamplerConfig& c) { c.percentile = 0; }), "percentile is 0");
  EXPECT_CONTAINS(refusal([](SamplerConfig& c) { c.spacing = Spacing::trailing; }, kEdm), "trailing spacing");
  EXPECT_CONTAINS(refusal([](SamplerConfig& c) { c.spacing = Spacing::leading, c.steps = 1; }), "leading spacing");
  EXPECT_CONTAINS(refusal([](SamplerConfig& c) { c.sigma_max = 3; }), "no meaning with linear spacing");
  EXPECT_CONTAINS(refusal([](SamplerConfig& c) { c.spacing = Spacing::karras, c.sigma_max = 300; }),
                  "of the model's noise levels");
  EXPECT_CONTAINS(refusal([](SamplerConfig& c) { c.sigma_min = 90; }, kEdm), "sigma from 80 down to 90");
}

TEST(Samplers, StepsSpacingsAndStrengthsAreDataOfOneGraph) {
  const UNetConfig unet = find_preset("tiny").unet;
  DiffusionConfig diffusion = kLinear;
  diffusion.label_dropout = 0.1;
  UNetConfig classes = unet;
  classes.num_classes = 3;
  for (const SamplerKind kind : {SamplerKind::ddim, SamplerKind::heun, SamplerKind::dpmpp2m}) {
    SamplerConfig config = default_sampler(diffusion, kind);
    config.guidance = 2;
    const std::string graph = ir::print(build_sampling_step(classes, diffusion, config));
    SamplerConfig other = config;
    other.steps = 1000, other.spacing = Spacing::trailing, other.guidance = 7;
    EXPECT_TRUE(same_graph(config, other));
    EXPECT_EQ(ir::print(build_sampling_step(classes, diffusion, other)), graph);
    other.clipping = Clipping::dynamic;
    EXPECT_FALSE(same_graph(config, other));
  }
}

class SamplingStep : public ::testing::TestWithParam<SamplerKind> {
 protected:
  /// All steps for images [first, first + count) of the set; with classes, of these labels.
  std::vector<double> draw(int64_t first, int64_t count, double garbage = 0, std::vector<double> labels = {}) {
    SamplerConfig config = default_sampler(kLinear, GetParam());
    config.steps = 4, config.batch = count;
    const ir::Graph graph = build_sampling_step(unet_, kLinear, config);
    ir::verify(graph);
    ir::Tensor x({DType::f32, {count, 8, 8, 1}});
    std::ranges::fill(x.data, garbage);
    const std::vector<SamplerRow> rows = sampler_rows(config, kLinear);
    const std::vector<float> table = sampler_table(rows, config.kind, kLinear);
    const ir::Type type{DType::f32, {table_rows(config.kind, kLinear), std::ssize(kColumns)}};
    ir::TensorMap states{{"seed", seed_tensor(3)},
                         {"params", params_},
                         {"table", {type, {table.begin(), table.end()}}},
                         {"position", scalar_i32(0)}};
    states["x"] = x;
    if (config.kind == SamplerKind::heun) states["x_before"] = x;
    if (config.kind == SamplerKind::heun || config.kind == SamplerKind::dpmpp2m) states["x0_before"] = x;
    ir::TensorMap inputs{{"index", index_tensor(count, first)}};
    if (!labels.empty()) inputs["label"] = {{DType::i32, {count}}, labels};
    for (size_t i = 0; i < rows.size(); ++i) states = run_reference(graph, inputs, states).states;
    EXPECT_EQ(states.at("position").data[0], static_cast<double>(evaluations(config.kind, 4)));
    return states.at("x").data;
  }

  void use(const UNetConfig& unet) {
    unet_ = unet;
    const ParameterLayout layout = parameter_layout(unet);
    params_ = tensor_f32({layout.size()}, parameters_without_zeros(layout, 4));
  }
  void SetUp() override { use(find_preset("tiny").unet); }

  UNetConfig unet_;
  ir::Tensor params_;
};

TEST_P(SamplingStep, AnImageDoesNotDependOnItsBatch) {
  const std::vector<double> batch = draw(0, 3), alone = draw(2, 1);
  ASSERT_EQ(batch.size(), 3 * alone.size());
  for (size_t i = 0; i < alone.size(); ++i) {
    EXPECT_EQ(batch[2 * alone.size() + i], alone[i]);
    EXPECT_LE(std::abs(alone[i]), 1);
  }
  EXPECT_NE(std::vector<double>(batch.begin(), batch.begin() + 64), alone);
}

TEST_P(SamplingStep, WhatXHeldBeforeTheFirstStepDoesNotMatter) { EXPECT_EQ(draw(0, 1), draw(0, 1, 123)); }

TEST_P(SamplingStep, AnImageDependsOnItsOwnLabel) {
  UNetConfig unet = unet_;
  unet.num_classes = 3;
  use(unet);
  const std::vector<double> batch = draw(0, 2, 0, {2, 1});
  const auto own = [&](int64_t i) { return std::vector<double>(batch.begin() + i * 64, batch.begin() + (i + 1) * 64); };
  EXPECT_EQ(draw(0, 1, 0, {2}), own(0));
  EXPECT_EQ(draw(1, 1, 0, {1}), own(1));
  EXPECT_GT(ir::relative_error(draw(1, 1, 0, {0}), own(1)), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Kinds, SamplingStep,
                         ::testing::Values(SamplerKind::ddim, SamplerKind::ddpm, SamplerKind::heun),
                         [](const auto& kind) { return std::string(to_string(kind.param)); });

}  // namespace
}  // namespace difuse::models
