// guided-diffusion's weights: names as ours, and no configuration but the one that shapes and names betray.
// Source: https://github.com/openai/guided-diffusion (unet.py, script_util.py).
#pragma once

#include <set>
#include <string>

#include "models/unet_config.h"
#include "models/weights/tensor_file.h"

namespace difuse::models {

/// Channels of the image and of a second one beside it, and whether a variance is learned, from the channels that the
/// UNet takes and gives. Where both are 2, 6 or 8, which no image has, it takes two images and gives one and a
/// variance.
void infer_channels(UNetConfig& config, int64_t in, int64_t out);

/// What can be told from names and shapes; `unknown` gets the fields that cannot. Fields that no tensor speaks of have
/// their defaults. Error when the tensors are not those of such a UNet.
UNetConfig infer_adm_config(const FileTensors& tensors, std::set<std::string>& unknown);

}  // namespace difuse::models
