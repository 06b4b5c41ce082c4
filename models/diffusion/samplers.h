// Sampling: one graph is one evaluation of the network with what a sampler makes of it (sampler_rows.h), replayed for
// the whole trajectory. The numbers of all evaluations are a table in the device's memory, and the state "position"
// says which row is next: other steps, spacings and strengths of noise and guidance are other numbers in the same
// graph.
#pragma once

#include <functional>

#include "ir/builder.h"
#include "ir/graph.h"
#include "models/diffusion/sampler_rows.h"
#include "models/unet_config.h"

namespace difuse::models {

/// Whatever finds an image in noise.
struct Denoiser {
  ir::Shape image;          ///< [H, W, C]
  int64_t num_classes = 0;  ///< 0: not conditional.
  bool learn_sigma = false;
  /// f32 [M, H, W, C], or 2C with a learned variance, from x f32 [M, H, W, C], time f32 [M] and, where there are
  /// classes, labels i32 [M].
  std::function<ir::Value(ir::Builder&, ir::Value x, ir::Value time, ir::Value labels)> network;
};

/// inputs  "index" i32[N]: which image of the requested set; "label" i32[N] where the model has classes;
///         "low_res" u8[N, h, w, C] where a UNet enlarges images (low_res.h)
/// states  "seed" u32[2], "table" f32[rows, columns] (sampler_table), "x" f32[N, H, W, C], "position" i32[]: finished
///         rows; heun and dpm++2m: "x0_before", heun: "x_before", like x; what the network's own parameters need:
///         "params" f32[P] of a UNet
/// A run at position 0 starts from noise drawn by (seed, index) whatever "x" holds, so drawing images is: write
/// "table", set "position" to 0, run once per row, read "x", in [-1, 1]. Image i of a batch is image i drawn alone.
/// With guidance other than 1 the network sees a batch of 2N: the images with their labels, then the same without.
/// Throws Error (wrong usage) when a configuration does not pass its check.
ir::Graph build_sampling_step(const Denoiser& denoiser, const DiffusionConfig& diffusion, const SamplerConfig& config);
ir::Graph build_sampling_step(const UNetConfig& unet, const DiffusionConfig& diffusion, const SamplerConfig& config);

/// Whether both configurations make the same graph.
bool same_graph(const SamplerConfig& a, const SamplerConfig& b);

}  // namespace difuse::models
