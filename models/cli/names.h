// The names that flags choose from.
#pragma once

#include <string>
#include <vector>

#include "models/presets.h"

namespace difuse::models {

inline std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) names.push_back(preset.name);
  return names;
}

}  // namespace difuse::models
