#include "models/diffusion/objective.h"

#include <algorithm>
#include <cmath>

#include "models/diffusion/ddpm.h"
#include "models/streams.h"

namespace difuse::models {
namespace {

using ir::DType;
using ir::Value;

/// table[t], f32 [N].
Value look_up(ir::Builder& build, const std::vector<double>& table, Value t) {
  return build.gather(build.literal(table, {DType::f32, {static_cast<int64_t>(table.size())}}), t);
}

Value noise_like(ir::Builder& build, Value x0, Value seed, Value index, Value step) {
  const ir::Shape& shape = build.shape(x0);
  return build.random_normal(seed, index, step, kNoiseStream, ir::Shape(shape.begin() + 1, shape.end()));
}

Task draw_ddpm(ir::Builder& build, const DiffusionConfig& config, Value x0, Value seed, Value index, Value step) {
  const ir::Shape shape = build.shape(x0);
  Task task;
  task.t = build.random_int(seed, index, step, kTimestepStream, {}, config.timesteps);
  const Value noise = noise_like(build, x0, seed, index, step);
  std::vector<double> signal, sigma;
  for (const double a : alpha_bars(config)) {
    signal.push_back(std::sqrt(a));
    sigma.push_back(std::sqrt(1 - a));
  }
  const auto scaled = [&](Value image, const std::vector<double>& table) {
    return build.mul(image, per_timestep(build, table, task.t, shape));
  };
  const Value kept = scaled(x0, signal);
  task.input = build.add(kept, scaled(noise, sigma));
  task.time = build.cast(task.t, DType::f32);
  if (time_factor(config) != 1) task.time = build.mul(task.time, time_factor(config));
  switch (config.prediction) {
    case Prediction::eps:
      task.target = noise;
      break;
    case Prediction::x0:
      task.target = x0;
      break;
    case Prediction::v:
      task.target = build.sub(scaled(noise, signal), scaled(x0, sigma));
      break;
  }
  if (config.min_snr_gamma > 0) task.weight = look_up(build, loss_weights(config), task.t);
  return task;
}

Task draw_edm(ir::Builder& build, const DiffusionConfig& config, Value x0, Value seed, Value index, Value step) {
  const ir::Shape shape = build.shape(x0);
  const double data = config.sigma_data;
  const Value draw = build.random_normal(seed, index, step, kTimestepStream, {});
  const Value log_sigma = build.add(build.mul(draw, config.p_std), config.p_mean);
  const Value sigma = build.exp(log_sigma);
  const Value c_in = build.rsqrt(build.add(build.square(sigma), data * data));
  const Value noise = noise_like(build, x0, seed, index, step);
  const auto scaled = [&](Value image, Value factor) { return build.mul(image, build.broadcast(factor, shape, {0})); };
  Task task;
  task.input = scaled(build.add(x0, scaled(noise, sigma)), c_in);
  task.time = build.mul(log_sigma, 0.25);
  task.target =
      build.sub(scaled(x0, build.mul(build.mul(sigma, c_in), 1 / data)), scaled(noise, build.mul(c_in, data)));
  return task;
}

}  // namespace

Task draw_task(ir::Builder& build, const DiffusionConfig& config, Value x0, Value seed, Value index, Value step) {
  check(config);
  return config.process == Process::edm ? draw_edm(build, config, x0, seed, index, step)
                                        : draw_ddpm(build, config, x0, seed, index, step);
}

std::vector<double> loss_weights(const DiffusionConfig& config) {
  std::vector<double> weights;
  for (const double a : alpha_bars(config)) {
    const double snr = a / (1 - a);
    const double bounded = config.min_snr_gamma > 0 ? std::min(snr, config.min_snr_gamma) : 0;
    if (config.min_snr_gamma == 0) {
      weights.push_back(1);
    } else if (config.prediction == Prediction::eps) {
      weights.push_back(bounded / snr);
    } else {
      weights.push_back(config.prediction == Prediction::x0 ? bounded : bounded / (snr + 1));
    }
  }
  return weights;
}

std::vector<double> noise_error_factors(const DiffusionConfig& config) {
  std::vector<double> factors;
  for (const double a : alpha_bars(config)) {
    // noise = (x_t - a x_0) / s = s x_t + a v
    if (config.prediction == Prediction::eps) {
      factors.push_back(1);
    } else {
      factors.push_back(config.prediction == Prediction::x0 ? -std::sqrt(a / (1 - a)) : std::sqrt(a));
    }
  }
  return factors;
}

Value per_timestep(ir::Builder& build, const std::vector<double>& table, Value t, const ir::Shape& shape) {
  return build.broadcast(look_up(build, table, t), shape, {0});
}

}  // namespace difuse::models
