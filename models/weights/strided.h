// Weights of the strided family: "down.0.weight", "middle.0.weight", "up.0.weight", ... with PyTorch's order of axes.
#pragma once

#include <set>
#include <string>

#include "models/unet_config.h"
#include "models/weights/tensor_file.h"

namespace difuse::models {

/// What can be told from names and shapes; `unknown` gets the fields that cannot. Error when the tensors are not those
/// of such a UNet.
UNetConfig infer_strided_config(const FileTensors& tensors, std::set<std::string>& unknown);

}  // namespace difuse::models
