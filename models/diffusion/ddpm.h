// Denoising diffusion (Ho, Jain and Abbeel, 2020): the noise schedules and the forward process
// x_t = sqrt(alpha_bar_t) x_0 + sqrt(1 - alpha_bar_t) noise, t = 0 .. timesteps - 1.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ir/builder.h"

namespace difuse::models {

enum class NoiseSchedule : uint8_t {
  linear,  ///< beta from 1e-4 to 0.02 over 1000 steps (Ho et al.), scaled by 1000 / timesteps.
  cosine,  ///< alpha_bar(s) = cos^2((s + 0.008) / 1.008 * pi / 2), beta at most 0.999 (Nichol and Dhariwal, 2021).
};

std::string_view to_string(NoiseSchedule schedule);
std::optional<NoiseSchedule> parse_noise_schedule(std::string_view text);

struct DiffusionConfig {
  NoiseSchedule schedule = NoiseSchedule::linear;
  int64_t timesteps = 1000;

  bool operator==(const DiffusionConfig&) const = default;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("schedule", schedule), v("timesteps", timesteps);
  }
};

/// Throws Error (wrong usage) with a choice that works.
void check(const DiffusionConfig& config);

/// beta_t = 1 - alpha_t, in double.
std::vector<double> betas(const DiffusionConfig& config);
/// alpha_bar_t = (1 - beta_0) ... (1 - beta_t), in double.
std::vector<double> alpha_bars(const DiffusionConfig& config);

/// x_t from x_0 and noise f32 [N, H, W, C] and t i32 [N].
ir::Value diffuse_image(ir::Builder& build, const DiffusionConfig& config, ir::Value x0, ir::Value noise, ir::Value t);

}  // namespace difuse::models
