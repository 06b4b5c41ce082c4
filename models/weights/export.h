// Weights for other programs.
#pragma once

#include <filesystem>
#include <span>

#include "models/checkpoint.h"
#include "models/parameters.h"

namespace difuse::models {

enum class WeightsFormat : uint8_t {
  difuse,       ///< A checkpoint without a training state: sample and train --init take it, --resume does not.
  diffusers,    ///< A folder of diffusers' UNet2DModel and its scheduler_config.json.
  safetensors,  ///< One file with guided-diffusion's names and PyTorch's order of axes.
};

/// Writes `parameters`, the flat vector of `layout`. Errors: the path cannot be written; the format cannot hold the
/// model (wrong usage).
void export_weights(WeightsFormat format, const std::filesystem::path& to, const RunConfig& config,
                    const ParameterLayout& layout, std::span<const float> parameters);

}  // namespace difuse::models
