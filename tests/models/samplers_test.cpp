// Samplers on a target whose denoiser is known exactly, through the step graphs of the product: against the papers'
// algorithms, each in its own coordinates, and against the solutions of the equations that they solve.
#include "models/diffusion/samplers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "models/diffusion/ddpm.h"
#include "models/streams.h"
#include "tests/models/gaussian_denoiser.h"
#include "tests/models/model_checks.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/backend/emulated_executor.h"

namespace difuse::models {
namespace {

using ir::DType;

constexpr Gaussian kTarget;

DiffusionConfig edm() {
  DiffusionConfig config;
  config.process = Process::edm;
  return config;
}

DiffusionConfig ddpm(NoiseSchedule schedule, int64_t timesteps, Prediction prediction = Prediction::eps) {
  DiffusionConfig config{schedule, timesteps};
  config.prediction = prediction;
  return config;
}

SamplerConfig sampler(const DiffusionConfig& diffusion, SamplerKind kind, int64_t steps) {
  SamplerConfig config = default_sampler(diffusion, kind);
  config.steps = steps;
  config.clipping = Clipping::none;
  return config;
}

/// alpha_bar of the kept timesteps of linear spacing, the noisiest first, and 1 at the end.
std::vector<double> kept_alpha_bars(const DiffusionConfig& diffusion, int64_t steps) {
  const std::vector<double> all = alpha_bars(diffusion);
  std::vector<double> kept;
  for (int64_t i = steps - 1; i >= 0; --i) {
    const double at = steps == 1 ? 1 : static_cast<double>(i) / static_cast<double>(steps - 1);
    kept.push_back(all[static_cast<size_t>(std::nearbyint(at * static_cast<double>(diffusion.timesteps - 1)))]);
  }
  kept.push_back(1);
  return kept;
}

/// E[x_0 | x_t] of a variance-preserving process.
double denoise_preserving(double x, double alpha_bar) {
  return kTarget.denoise(x / std::sqrt(alpha_bar), std::sqrt((1 - alpha_bar) / alpha_bar));
}

/// Ho et al., 2020, algorithm 2 with the posterior's variance (equations 6 and 7), over the kept timesteps.
double ancestral(const std::vector<double>& bar, const Trajectory& drawn, size_t pixel) {
  double x = drawn.start[pixel];
  for (size_t i = 0; i + 1 < bar.size(); ++i) {
    const double alpha = bar[i] / bar[i + 1], beta = 1 - alpha;
    const double x0 = denoise_preserving(x, bar[i]);
    const double mean =
        std::sqrt(bar[i + 1]) * beta / (1 - bar[i]) * x0 + std::sqrt(alpha) * (1 - bar[i + 1]) / (1 - bar[i]) * x;
    x = mean + std::sqrt(beta * (1 - bar[i + 1]) / (1 - bar[i])) * drawn.noise[i][pixel];
  }
  return x;
}

/// Song et al., 2021, equations 12 and 16.
double implicit(const std::vector<double>& bar, double eta, const Trajectory& drawn, size_t pixel) {
  double x = drawn.start[pixel];
  for (size_t i = 0; i + 1 < bar.size(); ++i) {
    const double x0 = denoise_preserving(x, bar[i]);
    const double eps = (x - std::sqrt(bar[i]) * x0) / std::sqrt(1 - bar[i]);
    const double sigma = eta * std::sqrt((1 - bar[i + 1]) / (1 - bar[i])) * std::sqrt(1 - bar[i] / bar[i + 1]);
    x = std::sqrt(bar[i + 1]) * x0 + std::sqrt(1 - bar[i + 1] - sigma * sigma) * eps + sigma * drawn.noise[i][pixel];
  }
  return x;
}

/// Karras et al., 2022, equation 5, with 0 at the end.
std::vector<double> karras(double most, double least, double rho, int64_t steps) {
  std::vector<double> t;
  for (int64_t i = 0; i < steps; ++i) {
    const double share = steps == 1 ? 0 : static_cast<double>(i) / static_cast<double>(steps - 1);
    t.push_back(std::pow(std::pow(most, 1 / rho) + share * (std::pow(least, 1 / rho) - std::pow(most, 1 / rho)), rho));
  }
  t.push_back(0);
  return t;
}

/// Karras et al., 2022, algorithm 2; `second` is whether with its lines 7 to 9.
double stochastic(const SamplerConfig& config, const std::vector<double>& t, bool second, const Trajectory& drawn,
                  size_t pixel) {
  double x = t[0] * drawn.start[pixel];
  for (size_t i = 0, row = 0; i + 1 < t.size(); ++i, ++row) {
    const bool churns = t[i] >= config.churn_min && t[i] <= config.churn_max;
    const double n = static_cast<double>(t.size() - 1);
    const double gamma = churns ? std::min(config.churn / n, std::sqrt(2.0) - 1) : 0;
    const double t_hat = t[i] * (1 + gamma);
    const double x_hat =
        x + std::sqrt(t_hat * t_hat - t[i] * t[i]) * config.churn_noise * (gamma > 0 ? drawn.churn[row][pixel] : 0);
    const double d = (x_hat - kTarget.denoise(x_hat, t_hat)) / t_hat;
    x = x_hat + (t[i + 1] - t_hat) * d;
    if (!second || t[i + 1] == 0) continue;
    ++row;
    const double d_next = (x - kTarget.denoise(x, t[i + 1])) / t[i + 1];
    x = x_hat + (t[i + 1] - t_hat) * (d + d_next) / 2;
  }
  return x;
}

/// Lu et al., 2022 (arXiv 2211.01095), algorithm 2, of a variance-preserving process: lambda = log(a / s). The step to
/// the image itself, at lambda = infinity, is of first order.
double multistep(const std::vector<double>& bar, const Trajectory& drawn, size_t pixel) {
  const auto lambda = [&](size_t i) { return std::log(bar[i] / (1 - bar[i])) / 2; };
  double x = drawn.start[pixel], x0_before = 0;
  for (size_t i = 0; i + 1 < bar.size(); ++i) {
    const double x0 = denoise_preserving(x, bar[i]);
    if (i + 2 == bar.size()) {
      x = x0;
      break;
    }
    double d = x0;
    const double h = lambda(i + 1) - lambda(i);
    if (i > 0) {
      const double r = (lambda(i) - lambda(i - 1)) / h;
      d = (1 + 1 / (2 * r)) * x0 - 1 / (2 * r) * x0_before;
    }
    x = std::sqrt((1 - bar[i + 1]) / (1 - bar[i])) * x - std::sqrt(bar[i + 1]) * std::expm1(-h) * d;
    x0_before = x0;
  }
  return x;
}

void expect_drawn(const SamplerConfig& config, const DiffusionConfig& diffusion,
                  const std::function<double(const Trajectory&, size_t)>& by_paper) {
  constexpr int64_t kPixels = 5;
  const Trajectory drawn = draw_gaussian(config, diffusion, kTarget, kPixels);
  for (size_t pixel = 0; pixel < kPixels; ++pixel) {
    ASSERT_NEAR(drawn.image[pixel], by_paper(drawn, pixel), 1e-7)
        << to_string(config.kind) << ", " << config.steps << " steps, " << to_string(diffusion.schedule) << ", "
        << to_string(diffusion.prediction);
  }
}

TEST(SamplersByPaper, OfDdpmModelsInAllPredictions) {
  for (const NoiseSchedule schedule : {NoiseSchedule::linear, NoiseSchedule::cosine}) {
    for (const Prediction prediction : {Prediction::eps, Prediction::x0, Prediction::v}) {
      const DiffusionConfig diffusion = ddpm(schedule, 40, prediction);
      for (const int64_t steps : {1, 2, 13, 40}) {
        const std::vector<double> bar = kept_alpha_bars(diffusion, steps);
        SamplerConfig config = sampler(diffusion, SamplerKind::ddpm, steps);
        expect_drawn(config, diffusion, [&](const Trajectory& t, size_t p) { return ancestral(bar, t, p); });
        config = sampler(diffusion, SamplerKind::ddim, steps);
        for (const double eta : {0.0, 0.4, 1.0}) {
          config.eta = eta;
          expect_drawn(config, diffusion, [&](const Trajectory& t, size_t p) { return implicit(bar, eta, t, p); });
        }
        config = sampler(diffusion, SamplerKind::dpmpp2m, steps);
        config.spacing = Spacing::linear;
        expect_drawn(config, diffusion, [&](const Trajectory& t, size_t p) { return multistep(bar, t, p); });
      }
    }
  }
}

TEST(SamplersByPaper, OfEdmModels) {
  for (const int64_t steps : {1, 2, 18}) {
    for (const SamplerKind kind : {SamplerKind::euler, SamplerKind::heun}) {
      SamplerConfig config = sampler(edm(), kind, steps);
      const std::vector<double> t = karras(80, 0.002, 7, steps);
      const auto by_paper = [&](const Trajectory& drawn, size_t p) {
        return stochastic(config, t, kind == SamplerKind::heun, drawn, p);
      };
      expect_drawn(config, edm(), by_paper);
      config.churn = 40, config.churn_min = 0.05, config.churn_max = 50, config.churn_noise = 1.003;
      expect_drawn(config, edm(), by_paper);
      config.churn = 2;
      expect_drawn(config, edm(), by_paper);
    }
  }
}

/// The solution of the probability flow down to no noise, from the start that the sampler has.
Drawn flow(const SamplerConfig& config, const DiffusionConfig& diffusion) {
  const double sigma = visited_sigmas(config, diffusion).front();
  const double gain = kTarget.deviation / std::hypot(kTarget.deviation, sigma);
  const double of_start = NoiseLevels(diffusion).start(sigma) * gain;
  return {kTarget.mean * (1 - gain), of_start, of_start};
}

/// The error halves `order` times when the steps are twice as many.
void expect_order(SamplerConfig config, const DiffusionConfig& diffusion, double order) {
  const auto errors = [&](int64_t intervals) {
    config.steps = intervals + 1;
    const Drawn drawn = distribution(config, diffusion, kTarget), exact = flow(config, diffusion);
    return std::pair(std::abs(drawn.mean - exact.mean), std::abs(drawn.deviation - exact.deviation));
  };
  const auto coarse = errors(32), fine = errors(64);
  SCOPED_TRACE(std::string(to_string(config.kind)) + ", " + std::string(to_string(diffusion.process)));
  EXPECT_NEAR(std::log2(coarse.first / fine.first), order, 0.25);
  EXPECT_NEAR(std::log2(coarse.second / fine.second), order, 0.25);
  EXPECT_LT(fine.second, order == 1 ? 0.03 : 2e-3);
}

TEST(SamplersByOrder, OfTheFlow) {
  for (const DiffusionConfig& diffusion : {edm(), ddpm(NoiseSchedule::cosine, 4000)}) {
    for (const auto& [kind, order] : {std::pair{SamplerKind::ddim, 1.0}, std::pair{SamplerKind::euler, 1.0},
                                      std::pair{SamplerKind::heun, 2.0}, std::pair{SamplerKind::dpmpp2m, 2.0}}) {
      SamplerConfig config = sampler(diffusion, kind, 1);
      config.spacing = Spacing::karras;
      if (diffusion.process == Process::edm) config.sigma_min = 1e-3;
      if (diffusion.process == Process::ddpm) config.sigma_max = 100;
      expect_order(config, diffusion, order);
    }
  }
}

TEST(SamplersByOrder, AncestralSamplersHaveTheExactMeanAndApproachTheVariance) {
  for (const DiffusionConfig& diffusion : {edm(), ddpm(NoiseSchedule::linear, 1000)}) {
    for (const SamplerKind kind : {SamplerKind::ddpm, SamplerKind::ddim}) {
      SamplerConfig config = sampler(diffusion, kind, 1);
      config.spacing = Spacing::karras;
      if (kind == SamplerKind::ddim) config.eta = 1;
      double error = 0;
      for (const int64_t steps : {1, 2, 33, 65}) {
        config.steps = steps;
        const double sigma = visited_sigmas(config, diffusion).front();
        const Drawn drawn = distribution(config, diffusion, kTarget);
        const double own = kTarget.deviation * kTarget.deviation, gain = own / (own + sigma * sigma);
        const double of_start = NoiseLevels(diffusion).start(sigma) * gain;
        EXPECT_NEAR(drawn.mean, kTarget.mean * (1 - gain), 1e-7) << to_string(kind) << " " << steps;
        EXPECT_NEAR(drawn.of_start, of_start, 1e-7) << to_string(kind) << " " << steps;
        const double before = error;
        error = std::abs(drawn.deviation - std::hypot(kTarget.deviation * std::sqrt(1 - gain), of_start));
        if (steps < 65) continue;
        EXPECT_NEAR(std::log2(before / error), 1, 0.25);
        EXPECT_LT(error, 0.05);
      }
    }
  }
}

TEST(SamplersByOrder, ChurnKeepsTheDistribution) {
  SamplerConfig config = sampler(edm(), SamplerKind::heun, 1);
  config.churn = 20;
  const auto drawn = [&](int64_t steps) {
    config.steps = steps;
    return distribution(config, edm(), kTarget);
  };
  const Drawn coarse = drawn(65), fine = drawn(129);
  EXPECT_LT(std::abs(fine.deviation - kTarget.deviation), 0.6 * std::abs(coarse.deviation - kTarget.deviation));
  EXPECT_NEAR(fine.deviation, kTarget.deviation, 3e-3);
  EXPECT_NEAR(fine.mean, kTarget.mean, 2e-3);
  config.churn = 0;
  EXPECT_GT(drawn(129).of_start, 2 * std::abs(fine.of_start));
}

TEST(SamplersByOrder, EverySpacingOfAllTimestepsReachesTheTarget) {
  const DiffusionConfig diffusion = ddpm(NoiseSchedule::linear, 100, Prediction::v);
  for (const Spacing spacing : {Spacing::karras, Spacing::linear, Spacing::trailing, Spacing::leading}) {
    for (const SamplerKind kind : {SamplerKind::ddim, SamplerKind::heun, SamplerKind::dpmpp2m}) {
      SamplerConfig config = sampler(diffusion, kind, 100);
      config.spacing = spacing;
      const Drawn drawn = distribution(config, diffusion, kTarget), exact = flow(config, diffusion);
      EXPECT_NEAR(drawn.mean, exact.mean, 0.01) << to_string(kind) << ", " << to_string(spacing);
      EXPECT_NEAR(drawn.deviation, exact.deviation, 0.02) << to_string(kind) << ", " << to_string(spacing);
    }
  }
}

TEST(Samplers, RescaledTimestepsAskTheSame) {
  for (const SamplerKind kind : {SamplerKind::ddim, SamplerKind::heun}) {
    DiffusionConfig diffusion = ddpm(NoiseSchedule::cosine, 250);
    const SamplerConfig config = sampler(diffusion, kind, 9);
    const std::vector<double> plain = draw_gaussian(config, diffusion, kTarget, 4).image;
    diffusion.rescale_timesteps = true;
    EXPECT_NEAR(sampler_rows(config, diffusion).front().time, 249 * 4, 1e-9);
    const std::vector<double> rescaled = draw_gaussian(config, diffusion, kTarget, 4).image;
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_NEAR(rescaled[i], plain[i], 1e-6);
  }
}

/// x and x_0 of one step, whose network answers with what it is given, at a made-up row.
struct OneStep {
  Denoiser denoiser;
  SamplerConfig config;
  DiffusionConfig diffusion;
  ir::TensorMap inputs;
  SamplerRow row;

  std::vector<double> run(const std::vector<double>& x) {
    const int64_t n = config.batch;
    const ir::Graph graph = build_sampling_step(denoiser, diffusion, config);
    ir::Tensor table({DType::f32, {table_rows(config.kind, diffusion), static_cast<int64_t>(kColumns.size())}});
    for (size_t c = 0; c < kColumns.size(); ++c) table.data[kColumns.size() + c] = row.*kColumns[c];
    ir::TensorMap states{{"seed", seed_tensor(5)}, {"table", table}, {"position", scalar_i32(1)}};
    states["x"] = tensor_f32({n, denoiser.image[0], denoiser.image[1], denoiser.image[2]}, x);
    inputs["index"] = index_tensor(n);
    return run_reference(graph, inputs, states).states.at("x").data;
  }
};

OneStep echo(int64_t batch, int64_t pixels) {
  OneStep step;
  step.denoiser = {{1, pixels, 1}, 0, false, [](ir::Builder&, ir::Value x, ir::Value, ir::Value) { return x; }};
  step.config.kind = SamplerKind::ddim;
  step.config.batch = batch;
  step.row.skip = 0;
  step.row.out = step.row.of_x0 = 1;
  return step;
}

TEST(Samplers, Clipping) {
  OneStep step = echo(1, 4);
  const std::vector<double> x = {0.5, -3, 1.5, -1};
  step.config.clipping = Clipping::none;
  EXPECT_EQ(step.run(x), x);
  step.config.clipping = Clipping::clip;
  EXPECT_EQ(step.run(x), (std::vector<double>{0.5, -1, 1, -1}));
}

TEST(Samplers, DynamicThresholdingIsThePercentileOfEachImage) {
  constexpr int64_t kPixels = 200;
  OneStep step = echo(2, kPixels);
  step.config.clipping = Clipping::dynamic;
  for (const double percentile : {0.5, 0.9, 0.995, 1.0}) {
    step.config.percentile = percentile;
    TestNumbers numbers(8);
    std::vector<double> x = numbers.vector(2 * kPixels, 4);
    for (size_t i = kPixels; i < x.size(); ++i) x[i] *= 0.2;  // The second image stays below 1.
    const std::vector<double> got = step.run(x);
    std::vector<double> sizes;
    for (size_t i = 0; i < kPixels; ++i) sizes.push_back(std::abs(x[i]));
    std::ranges::sort(sizes);
    const double s = sizes[static_cast<size_t>(std::ceil(percentile * kPixels - 1e-9)) - 1];
    for (size_t i = 0; i < kPixels; ++i) ASSERT_NEAR(got[i], std::clamp(x[i], -s, s) / s, 2e-6) << percentile;
    for (size_t i = kPixels; i < x.size(); ++i) ASSERT_NEAR(got[i], x[i], 2e-6);
  }
}

TEST(Samplers, GuidanceIsOneDoubledBatch) {
  OneStep step = echo(3, 2);
  step.diffusion.label_dropout = 0.1;
  step.config.clipping = Clipping::none;
  step.denoiser.num_classes = 4;
  std::vector<ir::Shape> seen;
  step.denoiser.network = [&](ir::Builder& build, ir::Value x, ir::Value, ir::Value labels) {
    seen.push_back(build.shape(x));
    return build.add(x, build.broadcast(build.cast(labels, DType::f32), build.shape(x), {0}));
  };
  step.inputs["label"] = {{DType::i32, {3}}, {2, 0, 1}};
  step.config.guidance = 1;
  EXPECT_EQ(step.run({0, 0.5, 0, 0.5, 0, 0.5}), (std::vector<double>{2, 2.5, 0, 0.5, 1, 1.5}));
  step.config.guidance = step.row.guidance = 2.5;  // Without label means class 3.
  EXPECT_EQ(step.run({0, 0.5, 0, 0.5, 0, 0.5}), (std::vector<double>{0.5, 1, -4.5, -4, -2, -1.5}));
  EXPECT_EQ(seen, (std::vector<ir::Shape>{{3, 1, 2, 1}, {6, 1, 2, 1}}));
}

TEST(Samplers, LearnedVarianceLiesBetweenItsBounds) {
  const DiffusionConfig diffusion = ddpm(NoiseSchedule::linear, 1000);
  SamplerConfig config = sampler(diffusion, SamplerKind::ddpm, 1000);
  const std::vector<SamplerRow> rows = sampler_rows(config, diffusion);
  const std::vector<double> beta = betas(diffusion), bar = alpha_bars(diffusion);
  for (const size_t t : {size_t{1}, size_t{2}, size_t{500}, size_t{999}}) {  // In the coordinates of x_{t-1} / a.
    EXPECT_NEAR(std::exp(rows[999 - t].most_log_variance) * bar[t - 1], beta[t], 1e-9);
    EXPECT_NEAR(std::exp(rows[999 - t].least_log_variance) * bar[t - 1], beta[t] * (1 - bar[t - 1]) / (1 - bar[t]),
                1e-9);
  }
  OneStep step = echo(1, 2);
  step.diffusion = diffusion;
  config.batch = 1;
  step.config = config;
  step.denoiser.learn_sigma = true;
  step.denoiser.network = [](ir::Builder& build, ir::Value x, ir::Value, ir::Value) {
    const ir::Value share = build.literal({-1, 1}, {DType::f32, {1, 1, 2, 1}});
    return build.concat({build.zeros_like(x), share}, 3);
  };
  const auto noise = [&](size_t at) {
    step.row = rows[at];
    step.row.of_x = 0;
    return step.run({0, 0});
  };
  ir::Graph graph;
  ir::Builder build(graph);
  graph.set_output("z",
                   build.random_normal(build.state("seed", {DType::u32, {2}}), build.input("index", {DType::i32, {1}}),
                                       build.constant(1, {DType::i32, {}}), kSamplingNoiseStream, {1, 2, 1}));
  const std::vector<double> z =
      run_reference(graph, {{"index", index_tensor(1)}}, {{"seed", seed_tensor(5)}}).outputs.at("z").data;
  EXPECT_NEAR(noise(300)[0], std::exp(rows[300].least_log_variance / 2) * z[0], 1e-12);
  EXPECT_NEAR(noise(300)[1], std::exp(rows[300].most_log_variance / 2) * z[1], 1e-12);
  EXPECT_EQ(noise(999), (std::vector<double>{0, 0}));
}

/// A trajectory in f32 as in the reference; `lower` makes an executor of a graph.
template <class Lower>
void expect_reference(const SamplerConfig& one, const DiffusionConfig& diffusion, const Lower& lower) {
  SamplerConfig config = one;
  config.batch = 1;
  constexpr int64_t kPixels = 16;
  const std::vector<SamplerRow> rows = sampler_rows(config, diffusion);
  const ir::Graph graph = build_sampling_step(gaussian_denoiser(diffusion, kTarget, kPixels), diffusion, config);
  const std::vector<float> table = sampler_table(rows, config.kind, diffusion);
  ASSERT_EQ(table.size(), static_cast<size_t>(table_rows(config.kind, diffusion)) * kColumns.size());
  const ir::Type image{DType::f32, {1, 1, kPixels, 1}};
  const ir::Type table_type{DType::f32, {table_rows(config.kind, diffusion), std::ssize(kColumns)}};
  ir::TensorMap states{{"seed", seed_tensor(5)},
                       {"table", {table_type, {table.begin(), table.end()}}},
                       {"x", ir::Tensor(image)},
                       {"position", scalar_i32(0)}};
  if (config.kind == SamplerKind::heun) states["x_before"] = ir::Tensor(image);
  if (config.kind == SamplerKind::heun || config.kind == SamplerKind::dpmpp2m) states["x0_before"] = ir::Tensor(image);
  const auto executor = lower(graph);
  const auto run = testing::run(*executor, {{"index", index_tensor(1, 3)}}, states, static_cast<int>(rows.size()));
  const std::vector<double> got = testing::decode(image, run.states.at("x")).data;
  EXPECT_LE(ir::relative_error(got, draw_gaussian(config, diffusion, kTarget, kPixels).image), 1e-4)
      << to_string(config.kind);  // An image starts at 80, where f32 steps are 1e-5.
}

TEST(Samplers, OnTheCpuAsInTheReference) {
  for (const SamplerKind kind :
       {SamplerKind::ddpm, SamplerKind::ddim, SamplerKind::euler, SamplerKind::heun, SamplerKind::dpmpp2m}) {
    expect_reference(sampler(edm(), kind, 6), edm(), [](const ir::Graph& graph) { return testing::lower(graph); });
  }
}

TEST(Samplers, InCudaKernelsAsInTheReference) {
  SamplerConfig config = sampler(edm(), SamplerKind::heun, 4);
  config.churn = 10;
  config.clipping = Clipping::dynamic;
  config.percentile = 0.9;
  expect_reference(config, edm(), [](const ir::Graph& graph) { return testing::lower_emulated(graph); });
}

}  // namespace
}  // namespace difuse::models
