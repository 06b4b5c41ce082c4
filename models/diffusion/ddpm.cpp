#include "models/diffusion/ddpm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "ir/error.h"

namespace difuse::models {

std::string_view to_string(NoiseSchedule schedule) { return schedule == NoiseSchedule::linear ? "linear" : "cosine"; }

std::optional<NoiseSchedule> parse_noise_schedule(std::string_view text) {
  for (NoiseSchedule s : {NoiseSchedule::linear, NoiseSchedule::cosine}) {
    if (to_string(s) == text) return s;
  }
  return std::nullopt;
}

void check(const DiffusionConfig& config) {
  // 20 / timesteps is the linear schedule's last beta, which must stay below 1.
  const int64_t least = config.schedule == NoiseSchedule::linear ? 21 : 1, most = 100000;
  if (config.timesteps >= least && config.timesteps <= most) return;
  throw Error(fmt::format("{} timesteps with the {} noise schedule", config.timesteps, to_string(config.schedule)),
              fmt::format("choose {} to {} timesteps", least, most), ExitCode::wrong_usage);
}

std::vector<double> betas(const DiffusionConfig& config) {
  check(config);
  const auto steps = static_cast<double>(config.timesteps);
  auto alpha_bar = [](double s) {
    const double c = std::cos((s + 0.008) / 1.008 * std::numbers::pi / 2);
    return c * c;
  };
  std::vector<double> beta;
  for (int64_t i = 0; i < config.timesteps; ++i) {
    const auto t = static_cast<double>(i);
    if (config.schedule == NoiseSchedule::linear) {
      beta.push_back(1000 / steps * (1e-4 + (0.02 - 1e-4) * t / (steps - 1)));
    } else {
      beta.push_back(std::min(1 - alpha_bar((t + 1) / steps) / alpha_bar(t / steps), 0.999));
    }
  }
  return beta;
}

std::vector<double> alpha_bars(const DiffusionConfig& config) {
  std::vector<double> result = betas(config);
  double product = 1;
  for (double& value : result) value = product *= 1 - value;
  return result;
}

ir::Value diffuse_image(ir::Builder& build, const DiffusionConfig& config, ir::Value x0, ir::Value noise, ir::Value t) {
  std::vector<double> signal, sigma;
  for (double a : alpha_bars(config)) {
    signal.push_back(std::sqrt(a));
    sigma.push_back(std::sqrt(1 - a));
  }
  const ir::Shape shape = build.shape(x0);
  auto scaled = [&](ir::Value image, std::vector<double> table) {
    const ir::Value rows = build.literal(std::move(table), {ir::DType::f32, {config.timesteps}});
    return build.mul(image, build.broadcast(build.gather(rows, t), shape, {0}));
  };
  const ir::Value kept = scaled(x0, std::move(signal));
  return build.add(kept, scaled(noise, std::move(sigma)));
}

}  // namespace difuse::models
