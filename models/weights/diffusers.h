// diffusers' UNet2DModel: a folder with config.json and diffusion_pytorch_model.safetensors, or a pipeline's folder
// with that in unet/ and a scheduler beside it. Source: https://github.com/huggingface/diffusers,
// src/diffusers/models/unets/unet_2d.py and unet_2d_blocks.py.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "models/unet_config.h"
#include "models/weights/tensor_file.h"

namespace difuse::models {

inline constexpr const char* kDiffusersFile = "diffusion_pytorch_model.safetensors";

/// The folder of the UNet itself for a path that a user gives, which may be that of its weights; empty when it is none
/// of diffusers'.
std::filesystem::path find_diffusers_folder(const std::filesystem::path& path);

/// The model that config.json describes; `tensors` say whether the middle attention has a norm, which depends on the
/// version that wrote it. `unknown` gets the fields that the file leaves open (the size, where sample_size is null).
/// Error naming the key whose value has no counterpart here.
UNetConfig read_diffusers_config(const std::filesystem::path& folder, const FileTensors& tensors,
                                 std::set<std::string>& unknown);

/// config.json for a model; of one that enlarges images it has a key of our own, "low_res_factor". Error (wrong usage)
/// naming the field that UNet2DModel cannot have.
nlohmann::ordered_json diffusers_config(const UNetConfig& config);

/// Where the values of our parameter lie: the names of one tensor, or of three that are concatenated. The first is what
/// is written; the others are what older versions wrote.
std::vector<std::vector<std::string>> diffusers_names(const UNetConfig& config, std::string_view name);

}  // namespace difuse::models
