// guided-diffusion's weights: names as ours, and no configuration but the one that shapes and names betray.
// Source: https://github.com/openai/guided-diffusion (unet.py, script_util.py).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "models/unet_config.h"
#include "models/weights/tensor_file.h"

namespace difuse::models {

/// Channels of the image and of a second one beside it, and whether a variance is learned, from the channels that the
/// UNet takes and gives. Where both are 2, 6 or 8, which no image has, it takes two images and gives one and a
/// variance. Where one is not known, `unknown` gets these fields.
void infer_channels(UNetConfig& config, std::optional<int64_t> in, std::optional<int64_t> out,
                    std::set<std::string>& unknown);
/// The same for images of config.image_channels.
void settle_channels(UNetConfig& config, int64_t in, int64_t out);

/// What can be told from names and shapes; `unknown` gets the fields that cannot. Fields that no tensor speaks of have
/// their defaults. A tensor that is missing or misshapen is made up for by others, as far as they say the same. Error
/// when the tensors are not those of such a UNet.
UNetConfig infer_adm_config(const FileTensors& tensors, std::set<std::string>& unknown);

}  // namespace difuse::models
