#include "models/diffusion/noise_levels.h"

#include <algorithm>
#include <cmath>

#include "models/diffusion/ddpm.h"

namespace difuse::models {

NoiseLevels::NoiseLevels(const DiffusionConfig& config) : config_(config) {
  check(config);
  if (config.process == Process::edm) return;
  for (const double a : alpha_bars(config)) sigmas_.push_back(std::sqrt(1 / a - 1));
}

double NoiseLevels::least() const { return config_.process == Process::edm ? 0.002 : sigmas_.front(); }
double NoiseLevels::most() const { return config_.process == Process::edm ? 80 : sigmas_.back(); }

double NoiseLevels::signal(double sigma) const {
  return config_.process == Process::edm ? 1 : 1 / std::sqrt(1 + sigma * sigma);
}

double NoiseLevels::start(double sigma) const {
  return config_.process == Process::edm ? sigma : std::sqrt(1 + sigma * sigma);
}

double NoiseLevels::time_of(double sigma) const {
  const auto above = std::ranges::lower_bound(sigmas_, sigma);
  double t = 0;
  if (above == sigmas_.end()) {
    t = static_cast<double>(sigmas_.size() - 1);
  } else if (above != sigmas_.begin()) {
    const double low = std::log(*(above - 1)), high = std::log(*above);
    t = static_cast<double>(above - sigmas_.begin()) - (high - std::log(sigma)) / (high - low);
  }
  return t * time_factor(config_);
}

NoiseLevel NoiseLevels::at(double sigma) const {
  const double variance = sigma * sigma;
  if (config_.process == Process::edm) {
    const double data = config_.sigma_data, all = variance + data * data;
    return {sigma, std::log(sigma) / 4, 1 / std::sqrt(all), data * data / all, sigma * data / std::sqrt(all), 1};
  }
  NoiseLevel level{sigma, time_of(sigma), signal(sigma), 1, -sigma, signal(sigma)};
  if (config_.prediction == Prediction::x0) {
    level.skip = 0;
    level.out = 1;
  } else if (config_.prediction == Prediction::v) {
    level.skip = level.signal * level.signal;
    level.out = -sigma * level.signal;
  }
  return level;
}

}  // namespace difuse::models
