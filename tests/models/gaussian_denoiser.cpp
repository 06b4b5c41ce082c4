#include "tests/models/gaussian_denoiser.h"

#include <algorithm>
#include <cmath>

#include "models/diffusion/ddpm.h"
#include "models/streams.h"
#include "tests/models/model_checks.h"

namespace difuse::models {
namespace {

using ir::DType;
using ir::Value;

/// sigma of each image from what the network is told.
Value sigma_of_time(ir::Builder& build, const DiffusionConfig& diffusion, Value time) {
  if (diffusion.process == Process::edm) return build.exp(build.mul(time, 4.0));
  // Between two timesteps, log sigma is linear.
  std::vector<double> low, high;
  for (const double a : alpha_bars(diffusion)) low.push_back(std::log((1 - a) / a) / 2);
  high.assign(low.begin() + 1, low.end());
  high.push_back(low.back());
  if (diffusion.rescale_timesteps) time = build.mul(time, static_cast<double>(diffusion.timesteps) / 1000);
  time = build.add(time, 1e-9);  // A whole timestep that was rescaled and back must not fall below itself.
  const Value whole = build.floor(time), part = build.sub(time, whole);
  const auto at = [&](const std::vector<double>& table) {
    const Value rows = build.literal(table, {DType::f32, {diffusion.timesteps}});
    return build.gather(rows, build.cast(whole, DType::i32));
  };
  return build.exp(build.add(build.mul(at(low), build.sub(1.0, part)), build.mul(at(high), part)));
}

std::vector<double> draws(int64_t stream, int64_t step, int64_t pixels) {
  ir::Graph graph;
  ir::Builder build(graph);
  graph.set_output(
      "z", build.random_normal(build.state("seed", {DType::u32, {2}}), build.input("index", {DType::i32, {1}}),
                               build.constant(static_cast<double>(step), {DType::i32, {}}), stream, {1, pixels, 1}));
  return run_reference(graph, {{"index", index_tensor(1, 3)}}, {{"seed", seed_tensor(5)}}).outputs.at("z").data;
}

/// a x = b by elimination with pivots; a is square.
std::vector<double> solve(std::vector<std::vector<double>> a, std::vector<double> b) {
  const size_t n = b.size();
  for (size_t i = 0; i < n; ++i) {
    size_t best = i;
    for (size_t k = i; k < n; ++k) best = std::abs(a[k][i]) > std::abs(a[best][i]) ? k : best;
    std::swap(a[i], a[best]);
    std::swap(b[i], b[best]);
    for (size_t k = i + 1; k < n; ++k) {
      const double factor = a[k][i] / a[i][i];
      for (size_t j = i; j < n; ++j) a[k][j] -= factor * a[i][j];
      b[k] -= factor * b[i];
    }
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t j = i + 1; j < n; ++j) b[i] -= a[i][j] * b[j];
    b[i] /= a[i][i];
  }
  return b;
}

}  // namespace

Denoiser gaussian_denoiser(const DiffusionConfig& diffusion, const Gaussian& target, int64_t pixels) {
  Denoiser denoiser{{1, pixels, 1}, 0, false, {}};
  denoiser.network = [=](ir::Builder& build, Value input, Value time, Value) {
    const ir::Shape shape = build.shape(input);
    const Value sigma = build.broadcast(sigma_of_time(build, diffusion, time), shape, {0});
    const Value variance = build.square(sigma);
    const bool edm = diffusion.process == Process::edm;
    const double data = edm ? diffusion.sigma_data * diffusion.sigma_data : 1;
    const Value x = build.mul(input, build.sqrt(build.add(variance, data)));
    const double own = target.deviation * target.deviation;
    const Value x0 =
        build.div(build.add(build.mul(x, own), build.mul(variance, target.mean)), build.add(variance, own));
    const Value eps = build.div(build.sub(x, x0), sigma);
    if (edm) {
      const Value c_skip = build.div(data, build.add(variance, data));
      const Value c_out = build.div(build.mul(sigma, diffusion.sigma_data), build.sqrt(build.add(variance, data)));
      return build.div(build.sub(x0, build.mul(c_skip, x)), c_out);
    }
    if (diffusion.prediction == Prediction::eps) return eps;
    if (diffusion.prediction == Prediction::x0) return x0;
    const Value signal = build.rsqrt(build.add(variance, 1.0));
    return build.sub(build.mul(signal, eps), build.mul(build.mul(sigma, signal), x0));
  };
  return denoiser;
}

Trajectory draw_gaussian(const SamplerConfig& config, const DiffusionConfig& diffusion, const Gaussian& target,
                         int64_t pixels) {
  SamplerConfig one = config;
  one.batch = 1;
  const ir::Graph graph = build_sampling_step(gaussian_denoiser(diffusion, target, pixels), diffusion, one);
  const std::vector<SamplerRow> rows = sampler_rows(one, diffusion);
  const int64_t columns = kColumns.size(), capacity = table_rows(one.kind, diffusion);
  ir::Tensor table({DType::f32, {capacity, columns}});
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t c = 0; c < kColumns.size(); ++c) table.data[r * kColumns.size() + c] = rows[r].*kColumns[c];
  }
  ir::Tensor garbage({DType::f32, {1, 1, pixels, 1}});
  std::ranges::fill(garbage.data, std::nan(""));
  ir::TensorMap states{{"seed", seed_tensor(5)}, {"table", table}, {"x", garbage}, {"position", scalar_i32(0)}};
  if (config.kind == SamplerKind::heun) states["x_before"] = garbage;
  if (config.kind == SamplerKind::heun || config.kind == SamplerKind::dpmpp2m) states["x0_before"] = garbage;
  Trajectory result;
  result.start = draws(kInitialNoiseStream, 0, pixels);
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto position = static_cast<int64_t>(r);
    states = run_reference(graph, {{"index", index_tensor(1, 3)}}, states).states;
    if (rows[r].noise != 0) result.noise.push_back(draws(kSamplingNoiseStream, position, pixels));
    if (rows[r].noise == 0) result.noise.emplace_back(static_cast<size_t>(pixels), 0.0);
    if (rows[r].churn != 0) result.churn.push_back(draws(kChurnStream, position, pixels));
    if (rows[r].churn == 0) result.churn.emplace_back(static_cast<size_t>(pixels), 0.0);
  }
  result.image = states.at("x").data;
  return result;
}

Drawn distribution(const SamplerConfig& config, const DiffusionConfig& diffusion, const Gaussian& target) {
  const std::vector<SamplerRow> rows = sampler_rows(config, diffusion);
  size_t unknown = 2;
  for (const SamplerRow& row : rows) unknown += (row.noise != 0) + (row.churn != 0);
  const Trajectory drawn = draw_gaussian(config, diffusion, target, static_cast<int64_t>(unknown));
  std::vector<std::vector<double>> a;
  for (size_t pixel = 0; pixel < unknown; ++pixel) {
    a.push_back({1, drawn.start[pixel]});
    for (size_t r = 0; r < rows.size(); ++r) {
      if (rows[r].noise != 0) a.back().push_back(drawn.noise[r][pixel]);
      if (rows[r].churn != 0) a.back().push_back(drawn.churn[r][pixel]);
    }
  }
  const std::vector<double> x = solve(a, drawn.image);
  double variance = 0;
  for (size_t i = 1; i < x.size(); ++i) variance += x[i] * x[i];
  return {x[0], std::sqrt(variance), x[1]};
}

}  // namespace difuse::models
