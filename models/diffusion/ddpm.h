// Denoising diffusion (Ho, Jain and Abbeel, 2020): the noise schedules and the forward process
// x_t = sqrt(alpha_bar_t) x_0 + sqrt(1 - alpha_bar_t) noise, t = 0 .. timesteps - 1.
#pragma once

#include <vector>

#include "models/diffusion/diffusion_config.h"

namespace difuse::models {

/// beta_t = 1 - alpha_t, in double.
std::vector<double> betas(const DiffusionConfig& config);
/// alpha_bar_t = (1 - beta_0) ... (1 - beta_t), in double.
std::vector<double> alpha_bars(const DiffusionConfig& config);

}  // namespace difuse::models
