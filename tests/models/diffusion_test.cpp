#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

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

TEST(Ddpm, CosineSchedule) {
  const std::vector<double> beta = betas(kCosine), bar = alpha_bars(kCosine);
  auto f = [](double s) { return std::pow(std::cos((s + 0.008) / 1.008 * std::numbers::pi / 2), 2); };
  for (int t : {0, 1, 400, 900, 998}) {
    EXPECT_NEAR(bar[static_cast<size_t>(t)], f((t + 1) / 1000.0) / f(0), 1e-12) << t;
  }
  EXPECT_EQ(beta.back(), 0.999);
}

TEST(Ddpm, RefusesTooFewTimesteps) {
  EXPECT_CONTAINS(test::error_of([] { check(DiffusionConfig{NoiseSchedule::linear, 20}); }), "choose 21 to");
  EXPECT_CONTAINS(test::error_of([] { check(DiffusionConfig{NoiseSchedule::cosine, 0}); }), "choose 1 to");
}

TEST(Ddpm, DiffusedImage) {
  ir::Graph graph;
  ir::Builder build(graph);
  const ir::Type image{DType::f32, {2, 2, 2, 1}};
  graph.set_output("x", diffuse_image(build, kLinear, build.input("x0", image), build.input("noise", image),
                                      build.input("t", {DType::i32, {2}})));
  TestNumbers numbers(1);
  const std::vector<double> x0 = numbers.vector(8), noise = numbers.vector(8);
  const std::vector<double> x = run_reference(graph,
                                              {{"x0", tensor_f32({2, 2, 2, 1}, x0)},
                                               {"noise", tensor_f32({2, 2, 2, 1}, noise)},
                                               {"t", {{DType::i32, {2}}, {0, 700}}}},
                                              {})
                                    .outputs.at("x")
                                    .data;
  for (size_t i = 0; i < 8; ++i) {
    const double bar = alpha_bars(kLinear)[i < 4 ? 0 : 700];
    EXPECT_NEAR(x[i], std::sqrt(bar) * x0[i] + std::sqrt(1 - bar) * noise[i], 1e-15);
  }
}

TEST(Samplers, KeptTimesteps) {
  EXPECT_EQ(kept_timesteps(1000, 1), (std::vector<int64_t>{999}));
  EXPECT_EQ(kept_timesteps(1000, 2), (std::vector<int64_t>{0, 999}));
  EXPECT_EQ(kept_timesteps(1000, 5), (std::vector<int64_t>{0, 250, 500, 749, 999}));
  const std::vector<int64_t> all = kept_timesteps(1000, 1000);
  for (int64_t i = 0; i < 1000; ++i) EXPECT_EQ(all[static_cast<size_t>(i)], i);
}

TEST(Samplers, AncestralTablesOfTheFullSchedule) {
  SamplerConfig config;
  config.kind = SamplerKind::ddpm, config.steps = 1000;
  const SamplerTables tables = sampler_tables(config, kLinear);
  const std::vector<double> beta = betas(kLinear), bar = alpha_bars(kLinear);
  for (size_t t : {size_t{1}, size_t{2}, size_t{500}, size_t{999}}) {  // Ho et al., equations 6 and 7
    const size_t at = 999 - t;
    EXPECT_EQ(tables.timestep[at], static_cast<double>(t));
    EXPECT_NEAR(tables.x0_weight[at], std::sqrt(bar[t - 1]) * beta[t] / (1 - bar[t]), 1e-11);
    EXPECT_NEAR(tables.x_weight[at], std::sqrt(1 - beta[t]) * (1 - bar[t - 1]) / (1 - bar[t]), 1e-11);
    EXPECT_NEAR(std::pow(tables.noise[at], 2), beta[t] * (1 - bar[t - 1]) / (1 - bar[t]), 1e-12);
    EXPECT_NEAR(std::exp(tables.most_log_variance[at]), beta[t], 1e-12);
  }
  EXPECT_NEAR(tables.x0_weight.back(), 1, 1e-11);
  EXPECT_NEAR(tables.x_weight.back(), 0, 1e-11);
  EXPECT_EQ(tables.noise.back(), 0);
  EXPECT_EQ(tables.least_log_variance.back(), tables.least_log_variance[998]);
}

TEST(Samplers, DdimWithEtaOneIsAncestralSampling) {
  SamplerConfig ddim, ddpm;
  ddim.eta = 1;
  ddim.steps = ddpm.steps = 20;
  ddpm.kind = SamplerKind::ddpm;
  const SamplerTables a = sampler_tables(ddim, kCosine), b = sampler_tables(ddpm, kCosine);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_NEAR(a.x0_weight[i], b.x0_weight[i], 1e-9);
    EXPECT_NEAR(a.x_weight[i], b.x_weight[i], 1e-9);
    EXPECT_NEAR(a.noise[i], b.noise[i], 1e-12);
  }
}

/// x after all steps of a sampler whose model knows the image: eps = (x - sqrt(bar) image) / sqrt(1 - bar).
std::vector<double> sample_with_oracle(const SamplerConfig& config, const DiffusionConfig& diffusion,
                                       const std::vector<double>& image, std::vector<double> x) {
  const SamplerTables tables = sampler_tables(config, diffusion);
  const std::vector<double> bars = alpha_bars(diffusion);
  const ir::Type type{DType::f32, {1, 2, 2, 1}};
  ir::Graph graph;
  ir::Builder build(graph);
  const ir::Value noise = build.input("noise", type);
  graph.set_output("x", sampler_update(build, config, tables, build.input("eps", type), build.input("x", type),
                                       build.input("position", {DType::i32, {}}), noise));
  TestNumbers numbers(9);
  for (int64_t position = 0; position < config.steps; ++position) {
    const double bar = bars[static_cast<size_t>(tables.timestep[static_cast<size_t>(position)])];
    std::vector<double> eps(4);
    for (size_t i = 0; i < 4; ++i) eps[i] = (x[i] - std::sqrt(bar) * image[i]) / std::sqrt(1 - bar);
    x = run_reference(graph,
                      {{"eps", tensor_f32({1, 2, 2, 1}, eps)},
                       {"x", tensor_f32({1, 2, 2, 1}, x)},
                       {"noise", tensor_f32({1, 2, 2, 1}, numbers.vector(4))},
                       {"position", scalar_i32(position)}},
                      {})
            .outputs.at("x")
            .data;
  }
  return x;
}

TEST(Samplers, AnOracleIsFollowedToItsImage) {
  const std::vector<double> image{0.5, -0.9, 0.1, 1}, start{1.5, -0.2, 0.7, -2};
  for (const DiffusionConfig& diffusion : {kLinear, kCosine}) {
    for (SamplerKind kind : {SamplerKind::ddim, SamplerKind::ddpm}) {
      for (int64_t steps : {1, 2, 10, 50}) {
        SamplerConfig config;
        config.kind = kind, config.steps = steps;
        const std::vector<double> x = sample_with_oracle(config, diffusion, image, start);
        for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(x[i], image[i], 1e-9) << to_string(kind) << " " << steps;
      }
    }
  }
}

TEST(Samplers, DdimKeepsTheNoiseOfItsTrajectory) {
  // Without clipping, a deterministic step of an oracle moves along x = sqrt(bar) image + sqrt(1 - bar) noise.
  SamplerConfig config;
  config.kind = SamplerKind::ddim;
  config.steps = 5, config.clip_x0 = false;
  const SamplerTables tables = sampler_tables(config, kLinear);
  const std::vector<double> bars = alpha_bars(kLinear);
  auto point = [&](size_t position) {
    const double bar = bars[static_cast<size_t>(tables.timestep[position])];
    return std::sqrt(bar) * 0.3 + std::sqrt(1 - bar) * 1.7;
  };
  for (size_t at = 0; at + 1 < 5; ++at) {
    const double x0 = tables.x_to_x0[at] * point(at) - tables.eps_to_x0[at] * 1.7;
    EXPECT_NEAR(x0, 0.3, 1e-12);
    EXPECT_NEAR(tables.x0_weight[at] * x0 + tables.x_weight[at] * point(at), point(at + 1), 1e-12);
  }
}

TEST(Samplers, LearnedVarianceLiesBetweenItsBounds) {
  SamplerConfig config;
  config.kind = SamplerKind::ddpm, config.steps = 10;
  const SamplerTables tables = sampler_tables(config, kLinear);
  ir::Graph graph;
  ir::Builder build(graph);
  const ir::Type type{DType::f32, {1, 1, 2, 1}};
  graph.set_output(
      "x", sampler_update(build, config, tables, build.input("out", {DType::f32, {1, 1, 2, 2}}),
                          build.constant(0, type), build.input("position", {DType::i32, {}}), build.constant(1, type)));
  for (int64_t position : {3, 9}) {
    const ir::TensorMap inputs{{"out", tensor_f32({1, 1, 2, 2}, {0, -1, 0, 1})}, {"position", scalar_i32(position)}};
    const std::vector<double> x = run_reference(graph, inputs, {}).outputs.at("x").data;
    const auto at = static_cast<size_t>(position);
    EXPECT_NEAR(x[0], position == 9 ? 0 : std::exp(tables.least_log_variance[at] / 2), 1e-15);
    EXPECT_NEAR(x[1], position == 9 ? 0 : std::exp(tables.most_log_variance[at] / 2), 1e-15);
  }
}

TEST(Samplers, RefusesSettingsThatCannotWork) {
  auto refusal = [](auto change) {
    SamplerConfig config;
    change(config);
    return test::error_of([&] { check(config, kLinear); });
  };
  EXPECT_CONTAINS(refusal([](SamplerConfig& c) { c.steps = 0; }), "choose 1 to 1000 steps");
  EXPECT_CONTAINS(refusal([](SamplerConfig& c) { c.steps = 1001; }), "1001 sampling steps of a model with 1000");
  EXPECT_CONTAINS(refusal([](SamplerConfig& c) { c.eta = 1.5; }), "eta is 1.5");
  EXPECT_CONTAINS(refusal([](SamplerConfig& c) { c.batch = 0; }), "batch of 0");
}

class SamplingStep : public ::testing::TestWithParam<SamplerKind> {
 protected:
  /// All steps for images [first, first + count) of the set; with classes, of these labels.
  std::vector<double> draw(int64_t first, int64_t count, double garbage = 0, std::vector<double> labels = {}) {
    SamplerConfig config;
    config.kind = GetParam(), config.steps = 4, config.batch = count;
    const ir::Graph graph = build_sampling_step(unet_, kLinear, config);
    ir::verify(graph);
    ir::Tensor x({DType::f32, {count, 8, 8, 1}});
    std::ranges::fill(x.data, garbage);
    ir::TensorMap states{{"seed", seed_tensor(3)}, {"params", params_}, {"x", x}, {"position", scalar_i32(0)}};
    ir::TensorMap inputs{{"index", index_tensor(count, first)}};
    if (!labels.empty()) inputs["label"] = {{DType::i32, {count}}, labels};
    for (int i = 0; i < 4; ++i) states = run_reference(graph, inputs, states).states;
    EXPECT_EQ(states.at("position").data[0], 4);
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

INSTANTIATE_TEST_SUITE_P(Kinds, SamplingStep, ::testing::Values(SamplerKind::ddim, SamplerKind::ddpm),
                         [](const auto& kind) { return std::string(to_string(kind.param)); });

}  // namespace
}  // namespace difuse::models
