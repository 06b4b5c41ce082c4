// Super-resolution: a model that enlarges images sees, beside the noisy image, the low-resolution one. In training that
// is the mean of each low_res_factor x low_res_factor pixels of the data, and both times it is brought back to the
// image's size by linear interpolation between pixel centres (Nichol and Dhariwal, 2021, section 5; guided-diffusion's
// super_res_train.py and SuperResModel, which take F.interpolate's "area" and "bilinear" for it).
#pragma once

#include "ir/builder.h"
#include "models/unet_config.h"

namespace difuse::models {

inline bool takes_low_res(const UNetConfig& unet) { return unet.conditioning_channels > 0; }

/// [height, width, channels] of the low-resolution image. Error (wrong usage) for a model whose second image has other
/// channels than its first, so that it is no smaller copy of it.
ir::Shape low_res_shape(const UNetConfig& unet);

/// f32 [N, H, W, C] -> [N, H / factor, W / factor, C]: the mean of factor x factor pixels; `factor` divides H and W.
ir::Value area_downsample(ir::Builder& build, ir::Value image, int64_t factor);
/// f32 [N, h, w, C] -> [N, h * factor, w * factor, C]; beyond the outermost centres it is constant.
ir::Value bilinear_upsample(ir::Builder& build, ir::Value image, int64_t factor);

/// The UNet's second image made of the data: x0 f32 [N, H, W, C] -> f32 [N, H, W, C].
ir::Value conditioning_of(ir::Builder& build, const UNetConfig& unet, ir::Value x0);
/// The UNet's second image for `batch` images that are drawn, from the graph's input "low_res" u8 [batch, h, w, C].
ir::Value conditioning_input(ir::Builder& build, const UNetConfig& unet, int64_t batch);

}  // namespace difuse::models
