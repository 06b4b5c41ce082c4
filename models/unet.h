// The UNets: guided-diffusion's topology, parameter names and arithmetic, and the small strided one.
#pragma once

#include <optional>

#include "models/blocks.h"
#include "models/parameters.h"
#include "models/unet_config.h"

namespace difuse::models {

struct UNetInputs {
  ir::Value x;                       ///< f32 [N, H, W, image_channels]
  ir::Value timesteps;               ///< f32 [N], in steps of the training schedule
  ir::Value labels;                  ///< i32 [N], where the model has classes
  ir::Value conditioning;            ///< f32 [N, H, W, conditioning_channels], where the model has them
  std::optional<RandomKey> dropout;  ///< In training.
};

/// f32 [N, H, W, out_channels]. Throws Error when the configuration does not pass check() or an input does not fit it.
ir::Value build_unet(ir::Builder& build, ParameterSource& parameters, const UNetConfig& config,
                     const UNetInputs& inputs);

ParameterLayout parameter_layout(const UNetConfig& config);

/// The UNet alone, as sampling runs it: inputs "x" f32[N, H, W, C], "timesteps" f32[N] and, where the model has
/// classes, "label" i32[N], where it enlarges images, "low_res" (low_res.h); state "params" f32[P]; output "output"
/// f32[N, H, W, out channels]. Throws Error (wrong usage) when the configuration does not pass its check or `batch` is
/// below 1.
ir::Graph build_forward(const UNetConfig& config, int64_t batch);

/// Operations of one image's forward (ir/flops.h).
int64_t forward_flops(const UNetConfig& config);

}  // namespace difuse::models
