// guided-diffusion's weights: names as ours, and no configuration but the one that shapes and names betray.
// Source: https://github.com/openai/guided-diffusion (unet.py, script_util.py).
#pragma once

#include <set>
#include <string>

#include "models/unet_config.h"
#include "models/weights/tensor_file.h"

namespace difuse::models {

/// What can be told from names and shapes; `unknown` gets the fields that cannot. Fields that no tensor speaks of have
/// their defaults. Error when the tensors are not those of such a UNet.
UNetConfig infer_adm_config(const FileTensors& tensors, std::set<std::string>& unknown);

}  // namespace difuse::models
