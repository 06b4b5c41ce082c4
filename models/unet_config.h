// models/ says what is run: UNet builders, diffusion processes, samplers, the training step, the training loop, the
// command line. What must not live here: ops (ir/), rewrites (passes/) and kernels (codegen/).
//
// This file: one plain struct that describes a UNet of the ADM family (Dhariwal and Nichol, "Diffusion Models Beat GANs
// on Image Synthesis", 2021), which holds DDPM's (Ho et al., 2020) and diffusers' UNet2DModel as cases, or a small
// convolutional UNet without norms.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ir/attrs.h"

namespace difuse::models {

enum class UNetFamily : uint8_t {
  residual,  ///< Residual blocks with norms, time embeddings and attention: ADM, DDPM, UNet2DModel.
  /// One strided convolution with ReLU down to each level, `num_res_blocks` convolutions in the middle, one transposed
  /// convolution up from each; skips are concatenated, and the time is one more channel of the input.
  strided,
};

/// How one level becomes the next.
enum class Resampling : uint8_t {
  convolution,  ///< A strided convolution; nearest neighbours and a convolution.
  plain,        ///< The mean of 2x2 pixels; nearest neighbours.
  residual,     ///< As `plain`, inside a residual block.
};

std::string_view to_string(UNetFamily family);
std::string_view to_string(Resampling resampling);

struct UNetConfig {
  int64_t image_height = 32, image_width = 32;  ///< Pixels; residual: each divisible by 2^(levels - 1).
  int64_t image_channels = 3;
  /// Channels of a second image that is concatenated to the first: the low-resolution one that a super-resolution model
  /// enlarges, brought to the image's size before (low_res.h).
  int64_t conditioning_channels = 0;
  int64_t low_res_factor = 4;  ///< How many times higher and wider the image is than that one.

  UNetFamily family = UNetFamily::residual;
  int64_t model_channels = 128;  ///< Base width; the time embedding is four times as wide.
  /// One entry per level; a level's width is model_channels times its entry, rounded down. Each level but the first
  /// halves height and width (strided: each level does, rounded up).
  std::vector<double> channel_mult = {1, 2, 2, 2};
  int64_t num_res_blocks = 2;  ///< Per level; the decoder has one more.
  /// Levels with attention, named by how much smaller they are than the image: 4 is where it is a quarter as high.
  std::vector<int64_t> attention_resolutions;
  std::vector<int64_t> decoder_attention_resolutions = {0};  ///< Of the decoder's levels; {0}: the same.
  bool middle_attention = true;
  bool middle_attention_norm = true;  ///< The middle attention has a GroupNorm, like the others.
  int64_t num_heads = 1;
  int64_t num_head_channels = 0;  ///< Channels per head; when set, `num_heads` is not read.
  ir::QkvOrder qkv_order = ir::QkvOrder::heads_first;

  int64_t groups = 32;  ///< Of every GroupNorm; divides every level's width.
  double norm_eps = 1e-5;
  bool use_scale_shift_norm = false;  ///< The time embedding scales and shifts the second norm instead of being added.
  bool conv_resample = true;          ///< Resampling has a convolution of its own; parameter-free otherwise.
  bool resblock_updown = false;       ///< Residual blocks resample instead.
  /// Level by level from the first, one entry less than levels: how the encoder leaves it, how the decoder comes back
  /// to it. Empty: as the two fields before say.
  std::vector<Resampling> encoder_resampling, decoder_resampling;
  int64_t downsample_padding = 1;  ///< Of strided convolutions: 1 on every side, or 0: one row and column at the end.
  double dropout = 0;              ///< Probability, in training.
  int64_t num_classes = 0;         ///< 0: not conditional.
  bool learn_sigma = false;        ///< The output has twice the image's channels: eps, then the variance's weight.
  double max_period = 10000;       ///< Of the timestep embedding.
  double freq_shift = 0;           ///< Its frequencies are max_period^(-i / (half - freq_shift)).
  bool cosines_first = true;       ///< It has cosines, then sines; the other way round otherwise.

  int64_t levels() const { return static_cast<int64_t>(channel_mult.size()); }
  int64_t out_channels() const { return learn_sigma ? 2 * image_channels : image_channels; }
  /// Channels of a level; the first is 0.
  int64_t width(int64_t level) const;
  bool attention_at(int64_t level) const;  ///< In the encoder.
  bool decoder_attention_at(int64_t level) const;
  Resampling downsampling(int64_t level) const;  ///< From `level` to the next.
  Resampling upsampling(int64_t level) const;    ///< To `level` from the next.
  int64_t input_channels() const { return image_channels + conditioning_channels; }
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
    visit_later_fields(v);
  }

  /// Those that the first checkpoints do not have; their defaults are what those models are.
  template <class Visitor>
  void visit_later_fields(Visitor&& v) {
    v("family", family), v("conditioning_channels", conditioning_channels), v("low_res_factor", low_res_factor);
    v("middle_attention", middle_attention);
    v("middle_attention_norm", middle_attention_norm);
    v("decoder_attention_resolutions", decoder_attention_resolutions), v("encoder_resampling", encoder_resampling);
    v("decoder_resampling", decoder_resampling), v("downsample_padding", downsample_padding);
    v("freq_shift", freq_shift), v("cosines_first", cosines_first);
  }
};

/// Throws Error (wrong usage) for the first thing that does not fit, with the arithmetic and a choice that works.
/// Nothing is built or allocated before this has passed.
void check(const UNetConfig& config);

}  // namespace difuse::models
