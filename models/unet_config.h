// models/ says what is run: UNet builders, diffusion processes, samplers, the training step, the training loop, the
// command line. What must not live here: ops (ir/), rewrites (passes/) and kernels (codegen/).
//
// This file: one plain struct that describes a UNet of the ADM family (Dhariwal and Nichol, "Diffusion Models Beat GANs
// on Image Synthesis", 2021), which holds DDPM's (Ho et al., 2020) as a case.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/attrs.h"

namespace difuse::models {

struct UNetConfig {
  int64_t image_height = 32, image_width = 32;  ///< Pixels; each divisible by 2^(levels - 1).
  int64_t image_channels = 3;

  int64_t model_channels = 128;  ///< Base width; the time embedding is four times as wide.
  /// One entry per level; a level's width is model_channels times its entry, rounded down. Each level but the first
  /// halves height and width.
  std::vector<double> channel_mult = {1, 2, 2, 2};
  int64_t num_res_blocks = 2;  ///< Per level; the decoder has one more.
  /// Levels with attention, named by how much smaller they are than the image: 4 is where it is a quarter as high. The
  /// middle block always has attention.
  std::vector<int64_t> attention_resolutions;
  int64_t num_heads = 1;
  int64_t num_head_channels = 0;  ///< Channels per head; when set, `num_heads` is not read.
  ir::QkvOrder qkv_order = ir::QkvOrder::heads_first;

  int64_t groups = 32;  ///< Of every GroupNorm; divides every level's width.
  double norm_eps = 1e-5;
  bool use_scale_shift_norm = false;  ///< The time embedding scales and shifts the second norm instead of being added.
  bool conv_resample = true;          ///< Resampling has a convolution of its own; parameter-free otherwise.
  bool resblock_updown = false;       ///< Residual blocks resample instead.
  double dropout = 0;                 ///< Probability, in training.
  int64_t num_classes = 0;            ///< 0: not conditional.
  bool learn_sigma = false;           ///< The output has twice the image's channels: eps, then the variance's weight.
  double max_period = 10000;          ///< Of the timestep embedding.

  int64_t levels() const { return static_cast<int64_t>(channel_mult.size()); }
  int64_t out_channels() const { return learn_sigma ? 2 * image_channels : image_channels; }
  /// Channels of a level; the first is 0.
  int64_t width(int64_t level) const;
  bool attention_at(int64_t level) const;
  /// Heads of an attention block with that many channels.
  int64_t heads(int64_t channels) const { return num_head_channels > 0 ? channels / num_head_channels : num_heads; }

  bool operator==(const UNetConfig&) const = default;

  /// Calls v(name, field) for each field, in order: files and messages derive from this one list.
  template <class Visitor>
  void visit(Visitor&& v) {
    v("image_height", image_height), v("image_width", image_width), v("image_channels", image_channels);
    v("model_channels", model_channels), v("channel_mult", channel_mult), v("num_res_blocks", num_res_blocks);
    v("attention_resolutions", attention_resolutions), v("num_heads", num_heads);
    v("num_head_channels", num_head_channels), v("qkv_order", qkv_order), v("groups", groups), v("norm_eps", norm_eps);
    v("use_scale_shift_norm", use_scale_shift_norm), v("conv_resample", conv_resample);
    v("resblock_updown", resblock_updown), v("dropout", dropout), v("num_classes", num_classes);
    v("learn_sigma", learn_sigma), v("max_period", max_period);
  }
};

/// Throws Error (wrong usage) for the first thing that does not fit, with the arithmetic and a choice that works.
/// Nothing is built or allocated before this has passed.
void check(const UNetConfig& config);

}  // namespace difuse::models
