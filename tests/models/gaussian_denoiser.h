// Samplers whose network is known exactly: that of images whose pixels are independent normal numbers.
#pragma once

#include <vector>

#include "models/diffusion/samplers.h"

namespace difuse::models {

struct Gaussian {
  double mean = 0.3, deviation = 0.5;

  /// The mean of x_0 given x = x_0 + sigma noise.
  double denoise(double x, double sigma) const {
    const double own = deviation * deviation, all = own + sigma * sigma;
    return (own * x + sigma * sigma * mean) / all;
  }
};

/// The answer that a trained network would give, whatever the process asks it for, for one image of 1 x pixels.
Denoiser gaussian_denoiser(const DiffusionConfig& diffusion, const Gaussian& target, int64_t pixels);

/// A trajectory through the product's step graph, in the fp64 reference, with what it drew.
struct Trajectory {
  std::vector<double> image;               ///< Of each pixel.
  std::vector<double> start;               ///< Standard normal.
  std::vector<std::vector<double>> noise;  ///< For each row: what a stochastic sampler adds after it.
  std::vector<std::vector<double>> churn;  ///< For each row: what is added before it.
};
Trajectory draw_gaussian(const SamplerConfig& config, const DiffusionConfig& diffusion, const Gaussian& target,
                         int64_t pixels);

/// The distribution of the images: they are linear in what was drawn, so it is known exactly from enough pixels.
struct Drawn {
  double mean = 0, deviation = 0;
  double of_start = 0;  ///< How far an image moves with the standard normal start.
};
Drawn distribution(const SamplerConfig& config, const DiffusionConfig& diffusion, const Gaussian& target);

}  // namespace difuse::models
