#include "models/diffusion/ddpm.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace difuse::models {

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

}  // namespace difuse::models
