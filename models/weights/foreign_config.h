// The configuration of weights that say only a part of it.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "models/checkpoint.h"

namespace difuse::models {

struct WeightsOptions;

/// What a file says of its model.
struct ForeignConfig {
  UNetConfig unet;
  std::optional<DiffusionConfig> diffusion;  ///< Where it says that too.
  std::set<std::string> unknown;             ///< Fields of `unet` that it leaves open.
  std::string kind;                          ///< "weights of unet.cu"
};

/// The fields that are open, and the process where it is, come from the preset or file of the options; without these,
/// from the preset that agrees with all others, if fields are open that decide an output. Errors (wrong usage): the
/// options contradict the file; no preset agrees, or several that differ.
RunConfig settle_foreign_config(const std::filesystem::path& path, const ForeignConfig& described,
                                const WeightsOptions& options);

/// Error (wrong usage) when the options describe another model than the one that the file says in full.
void require_same_config(const std::filesystem::path& path, const UNetConfig& unet, const WeightsOptions& options);

}  // namespace difuse::models
