// Configurations as TOML files, which people write:
//
//   preset = "mnist-small"     where to start from; without it, from the defaults of the structs
//   [model]                    fields of UNetConfig
//   [diffusion]                fields of DiffusionConfig
//   [training]                 fields of TrainingTable
//
// Every key is optional, and no other key is allowed.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/config/training_table.h"
#include "models/diffusion/diffusion_config.h"
#include "models/unet_config.h"

namespace difuse::models {

/// One field that somebody has set.
struct Setting {
  std::string source;  ///< "--lr 0.1", or "'a.toml' line 3: learning_rate = 0.1".
  std::string table;   ///< "model", "diffusion", "training"; flags also have "run".
  std::string key;
  nlohmann::json value;  ///< Of the field's type.
};

struct ConfigFile {
  std::optional<Setting> preset;
  std::vector<Setting> settings;
};

/// Errors (wrong usage), which name the file and the line: it does not exist, is not TOML, has an unknown key (with the
/// nearest one that exists) or a value of the wrong type.
ConfigFile read_config_file(const std::filesystem::path& path);

/// A file that reads back as these configurations. `preset` may be empty.
std::string to_toml(const std::string& preset, const UNetConfig& unet, const DiffusionConfig& diffusion,
                    const TrainingConfig& training);

}  // namespace difuse::models
