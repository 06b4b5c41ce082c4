#include "models/diffusion/samplers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ir/error.h"
#include "models/streams.h"
#include "models/unet.h"

namespace difuse::models {
namespace {

using ir::DType;
using ir::Value;

[[noreturn]] void refuse(const std::string& message, std::string remedy) {
  throw Error(message, std::move(remedy), ExitCode::wrong_usage);
}

bool adds_noise(const SamplerTables& tables) {
  return std::ranges::any_of(tables.noise, [](double s) { return s != 0; });
}

/// The entry of a table at a position, as f32 [].
Value entry(ir::Builder& build, const std::vector<double>& table, Value position) {
  const Value rows = build.literal(table, {DType::f32, {static_cast<int64_t>(table.size())}});
  return build.reshape(build.gather(rows, build.reshape(position, {1})), {});
}

}  // namespace

std::string_view to_string(SamplerKind kind) { return kind == SamplerKind::ddim ? "ddim" : "ddpm"; }

std::optional<SamplerKind> parse_sampler_kind(std::string_view text) {
  for (SamplerKind k : {SamplerKind::ddim, SamplerKind::ddpm}) {
    if (to_string(k) == text) return k;
  }
  return std::nullopt;
}

void check(const SamplerConfig& config, const DiffusionConfig& diffusion) {
  check(diffusion);
  if (config.steps < 1 || config.steps > diffusion.timesteps) {
    refuse(fmt::format("{} sampling steps of a model with {} timesteps", config.steps, diffusion.timesteps),
           fmt::format("choose 1 to {} steps", diffusion.timesteps));
  }
  if (!(config.eta >= 0 && config.eta <= 1)) refuse(fmt::format("eta is {}", config.eta), "choose 0 to 1");
  if (config.batch < 1) refuse(fmt::format("a batch of {}", config.batch), "choose at least 1");
}

std::vector<int64_t> kept_timesteps(int64_t timesteps, int64_t steps) {
  if (steps == 1) return {timesteps - 1};
  const double stride = static_cast<double>(timesteps - 1) / static_cast<double>(steps - 1);
  std::vector<int64_t> kept;
  double at = 0;
  for (int64_t i = 0; i < steps; ++i, at += stride) kept.push_back(std::llround(std::nearbyint(at)));
  return kept;
}

SamplerTables sampler_tables(const SamplerConfig& config, const DiffusionConfig& diffusion) {
  check(config, diffusion);
  const std::vector<double> all = alpha_bars(diffusion);
  const std::vector<int64_t> kept = kept_timesteps(diffusion.timesteps, config.steps);
  auto kept_alpha_bar = [&](int64_t i) { return i < 0 ? 1.0 : all[static_cast<size_t>(kept[static_cast<size_t>(i)])]; };
  auto posterior_variance = [&](int64_t i) {  // of q(x_{i-1} | x_i, x_0)
    const double now = kept_alpha_bar(i), before = kept_alpha_bar(i - 1);
    return (1 - now / before) * (1 - before) / (1 - now);
  };
  SamplerTables t;
  for (int64_t i = config.steps - 1; i >= 0; --i) {
    const double now = kept_alpha_bar(i), before = kept_alpha_bar(i - 1), beta = 1 - now / before;
    t.timestep.push_back(static_cast<double>(kept[static_cast<size_t>(i)]));
    t.x_to_x0.push_back(std::sqrt(1 / now));
    t.eps_to_x0.push_back(std::sqrt(1 / now - 1));
    double sigma = std::sqrt(posterior_variance(i));
    if (config.kind == SamplerKind::ddim) {
      sigma *= config.eta;
      // The direction to x_t by the clipped x0: eps = (x - sqrt(now) x0) / sqrt(1 - now).
      const double direction = std::sqrt(std::max(0.0, 1 - before - sigma * sigma)) / std::sqrt(1 - now);
      t.x0_weight.push_back(std::sqrt(before) - direction * std::sqrt(now));
      t.x_weight.push_back(direction);
    } else {
      if (config.large_variance) sigma = std::sqrt(beta);
      t.x0_weight.push_back(beta * std::sqrt(before) / (1 - now));
      t.x_weight.push_back((1 - before) * std::sqrt(now / before) / (1 - now));
    }
    t.noise.push_back(i == 0 ? 0 : sigma);
    // The posterior's variance is zero at the first step: the second's stands in. A single step adds no noise at all.
    const double least = i > 0 || config.steps == 1 ? posterior_variance(i) : posterior_variance(1);
    t.least_log_variance.push_back(std::log(std::max(least, 1e-20)));
    t.most_log_variance.push_back(std::log(beta));
  }
  return t;
}

Value sampler_update(ir::Builder& build, const SamplerConfig& config, const SamplerTables& tables, Value model_output,
                     Value x, Value position, Value noise) {
  const ir::Shape shape = build.shape(x);
  const int64_t channels = shape[3];
  auto weight = [&](const std::vector<double>& table) {
    return build.broadcast_scalar(entry(build, table, position), shape);
  };
  const Value eps = build.slice(model_output, 3, 0, channels);
  Value x0 = build.sub(build.mul(weight(tables.x_to_x0), x), build.mul(weight(tables.eps_to_x0), eps));
  if (config.clip_x0) x0 = build.min(build.max(x0, -1.0), 1.0);
  Value next = build.add(build.mul(weight(tables.x0_weight), x0), build.mul(weight(tables.x_weight), x));
  if (!adds_noise(tables)) return next;
  const bool learned = config.kind == SamplerKind::ddpm && build.shape(model_output)[3] == 2 * channels;
  if (!learned) return build.add(next, build.mul(weight(tables.noise), noise));
  // The second half of the output, in [-1, 1], goes from the least to the most log variance.
  const Value share = build.mul(build.add(build.slice(model_output, 3, channels, 2 * channels), 1.0), 0.5);
  const Value least = weight(tables.least_log_variance), most = weight(tables.most_log_variance);
  const Value log_variance = build.add(build.mul(share, most), build.mul(build.sub(1.0, share), least));
  std::vector<double> on;
  for (double s : tables.noise) on.push_back(s != 0 ? 1 : 0);
  return build.add(next, build.mul(weight(on), build.mul(build.exp(build.mul(log_variance, 0.5)), noise)));
}

ir::Graph build_sampling_step(const UNetConfig& unet, const DiffusionConfig& diffusion, const SamplerConfig& config) {
  check(unet);
  const SamplerTables tables = sampler_tables(config, diffusion);
  const ParameterLayout layout = parameter_layout(unet);
  const ir::Shape sample{unet.image_height, unet.image_width, unet.image_channels};
  const ir::Shape shape{config.batch, sample[0], sample[1], sample[2]};

  ir::Graph graph("sampling_step");
  ir::Builder build(graph);
  const Value index = build.input("index", {DType::i32, {config.batch}});
  const Value seed = build.state("seed", {DType::u32, {2}});
  const Value params = build.state("params", {DType::f32, {layout.size()}});
  const Value state_x = build.state("x", {DType::f32, shape});
  const Value position = build.state("position", {DType::i32, {}});

  const Value start =
      build.random_normal(seed, index, build.constant(0, {DType::i32, {}}), kInitialNoiseStream, sample);
  const Value is_start = build.broadcast_scalar(build.equal(position, 0.0), shape);
  const Value x = build.select(is_start, start, state_x);

  UNetInputs inputs;
  inputs.x = x;
  inputs.timesteps = build.broadcast_scalar(entry(build, tables.timestep, position), {config.batch});
  if (unet.num_classes > 0) inputs.labels = build.input("label", {DType::i32, {config.batch}});
  PackedParameters parameters(build, layout, params);
  const Value output = build_unet(build, parameters, unet, inputs);

  Value noise;
  if (adds_noise(tables)) noise = build.random_normal(seed, index, position, kSamplingNoiseStream, sample);
  graph.set_update("x", sampler_update(build, config, tables, output, x, position, noise));
  graph.set_update("position", build.add(position, 1.0));
  return graph;
}

}  // namespace difuse::models
