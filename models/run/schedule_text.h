// A sampler's schedule for people to read.
#pragma once

#include <string>

#include "models/diffusion/sampler_config.h"

namespace difuse::models {

/// A title and one line per evaluation of the network (sampler_rows.h).
std::string schedule_text(const SamplerConfig& config, const DiffusionConfig& diffusion);

}  // namespace difuse::models
