// The scheduler of a diffusers pipeline, scheduler_config.json: what the model was trained on, and how its authors
// draw. Source: https://github.com/huggingface/diffusers, src/diffusers/schedulers.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "models/diffusion/diffusion_config.h"
#include "models/unet_config.h"

namespace difuse::models {

/// Where the scheduler of a UNet's folder is described: beside its config.json, or in scheduler/ beside unet/; empty
/// where nothing does.
std::filesystem::path find_diffusers_schedule(const std::filesystem::path& unet_folder);

struct DiffusersSchedule {
  DiffusionConfig diffusion;
  /// What the scheduler does in drawing that takes flags here, and what of it has no flag; empty for nothing.
  std::string note;
};

/// Noise schedule, prediction and process, and "label_dropout", a key of our own. Error naming the key whose value has
/// no counterpart here, such as a zero terminal signal or a schedule of flow matching, or that `unet` cannot have.
DiffusersSchedule read_diffusers_schedule(const std::filesystem::path& path, const UNetConfig& unet);

/// scheduler_config.json for a process. Error (wrong usage) naming the field that no scheduler has.
nlohmann::ordered_json diffusers_schedule(const DiffusionConfig& diffusion, bool learn_sigma);

}  // namespace difuse::models
