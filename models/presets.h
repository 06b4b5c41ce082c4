// Named models, as data.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/diffusion/diffusion_config.h"
#include "models/training_step.h"
#include "models/unet_config.h"

namespace difuse::models {

/// A model with the diffusion process it is trained on and training settings that suit it.
struct Preset {
  std::string name, description;
  UNetConfig unet;
  DiffusionConfig diffusion;
  TrainingConfig training;
};

/// Smallest first.
std::vector<Preset> presets();

/// Throws Error (wrong usage) listing the names when there is no such preset.
Preset find_preset(std::string_view name);

}  // namespace difuse::models
