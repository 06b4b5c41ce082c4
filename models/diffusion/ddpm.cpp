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
  const auto between = [steps](double first, double last, double t) {
    return first + (last - first) * t / (steps - 1);
  };
  std::vector<double> beta;
  for (int64_t i = 0; i < config.timesteps; ++i) {
    const auto t = static_cast<double>(i);
    if (config.schedule == NoiseSchedule::linear) {
      beta.push_back(1000 / steps * between(config.beta_start, config.beta_end, t));
    } else if (config.schedule == NoiseSchedule::scaled_linear) {
      const double root = between(std::sqrt(config.beta_start), std::sqrt(config.beta_end), t);
      beta.push_back(1000 / steps * root * root);
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
