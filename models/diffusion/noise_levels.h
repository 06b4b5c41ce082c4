// How noisy a trained model can be asked to see images, in coordinates that all processes share:
// x = x_0 + sigma noise. A ddpm process, whose x_t is a x_0 + s noise, is in them after division by a, with
// sigma = s / a; both have the same x_0.
#pragma once

#include <cstdint>
#include <vector>

#include "models/diffusion/diffusion_config.h"

namespace difuse::models {

/// How a network is asked at one noise level: x_0 is about skip x + out F(in x; time).
struct NoiseLevel {
  double sigma = 0;
  double time = 0;
  double in = 1, skip = 1, out = 0;
  double signal = 1;  ///< What the process multiplies these coordinates by: a; 1 in edm.
};

class NoiseLevels {
 public:
  explicit NoiseLevels(const DiffusionConfig& config);

  /// The range to draw images from: of a ddpm process that of its timesteps, of edm the paper's, 0.002 to 80.
  double least() const;
  double most() const;

  /// Of sigma > 0. A ddpm process knows no more than most(), and asks between two timesteps for a time between them,
  /// linear in log sigma; below least() for time 0.
  NoiseLevel at(double sigma) const;
  /// The process's factor of these coordinates at any sigma, 0 included.
  double signal(double sigma) const;
  /// Standard deviation of the noise that drawing starts from: that of the process's own x at that level.
  double start(double sigma) const;

  /// ddpm: of timesteps 0, 1, ..., increasing.
  const std::vector<double>& sigmas() const { return sigmas_; }

 private:
  double time_of(double sigma) const;

  DiffusionConfig config_;
  std::vector<double> sigmas_;
};

}  // namespace difuse::models
