// What a network is trained on: an image with noise in it, and the answer that would be right.
//
// ddpm (ddpm.h): t is uniform, x_t = a x_0 + s noise, and the answer is the noise, x_0, or v = a noise - s x_0. With
// snr = a^2 / s^2 and gamma > 0 the squared error counts min(snr, gamma) times in x_0 (Hang et al., 2023), which is
// min(snr, gamma) / snr for the noise and min(snr, gamma) / (snr + 1) for v.
//
// edm (Karras et al., 2022): log sigma is normal, x = x_0 + sigma noise, and D(x) = c_skip x + c_out F(c_in x; c_noise)
// with weight lambda = 1 / c_out^2 (table 1). Its loss lambda (D(x) - x_0)^2 is (F - target)^2 with
// target = (x_0 - c_skip x) / c_out (equation 8) = (sigma x_0 / sigma_data - sigma_data noise) / sqrt(sigma^2 +
// sigma_data^2), in which no two nearly equal numbers are subtracted.
#pragma once

#include <vector>

#include "ir/builder.h"
#include "models/diffusion/diffusion_config.h"

namespace difuse::models {

/// The network's task for one batch. Images are f32 [N, H, W, C].
struct Task {
  ir::Value input;   ///< What the network sees: x_t, or c_in x.
  ir::Value time;    ///< f32 [N]: t (rescaled where the configuration says so), or c_noise.
  ir::Value target;  ///< What it should answer.
  ir::Value weight;  ///< f32 [N], of the squared error; invalid where it is 1.
  ir::Value t;       ///< i32 [N]; ddpm alone.
};

/// Draws noise and noise levels by (seed u32 [2], index i32 [N], step i32 []) for x0 f32 [N, H, W, C] in [-1, 1].
Task draw_task(ir::Builder& build, const DiffusionConfig& config, ir::Value x0, ir::Value seed, ir::Value index,
               ir::Value step);

/// Per timestep of a ddpm process, in double.
std::vector<double> loss_weights(const DiffusionConfig& config);
/// error of the noise = factor_t * error of the network's answer.
std::vector<double> noise_error_factors(const DiffusionConfig& config);

/// table[t] of each image, over its pixels: f32 `shape` from t i32 [N].
ir::Value per_timestep(ir::Builder& build, const std::vector<double>& table, ir::Value t, const ir::Shape& shape);

}  // namespace difuse::models
