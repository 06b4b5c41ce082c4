// The blocks of an ADM UNet, each written once over the graph builder.
//
// Two places differ from the usual formulation in the order of sums, not in meaning: a residual block's first bias and
// its time-embedding row meet as [N, C] before they are added to the image, and a norm's gamma and beta meet the
// group's statistics (and the embedding's scale and shift) as [N, C], so that the image-sized work is one subtract,
// multiply and add.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "models/parameters.h"
#include "models/unet_config.h"

namespace difuse::models {

/// What dropout draws its masks from: seed u32[2], index i32[N], step i32[].
struct RandomKey {
  ir::Value seed, index, step;
};

/// An image [N, H, W, C] and the tensors it is concatenated from along its channels (itself, when from none). Norms
/// take the statistics of the parts, so the parts' producers can make them.
struct Image {
  ir::Value value;
  std::vector<ir::Value> parts;

  explicit Image(ir::Value v) : value(v), parts{v} {}
  static Image concat(ir::Builder& build, ir::Value a, ir::Value b);
};

enum class Resample : uint8_t { none, up, down };

/// [N] timesteps -> f32 [N, model_channels]: cosines of t * max_period^(-i / (half - freq_shift)), then sines (or the
/// other way round), then a zero where the width is odd (Ho et al., 2020; Vaswani et al., 2017). Frequencies are split
/// in two, so that for whole timesteps below 4096 the large angle t * high is exact in f32 and the result has nearly
/// all its digits.
ir::Value timestep_embedding(ir::Builder& build, ir::Value timesteps, const UNetConfig& config);

class Blocks {
 public:
  /// Without `dropout` no mask is drawn, whatever the configuration says: sampling.
  Blocks(ir::Builder& build, ParameterSource& parameters, const UNetConfig& config, std::optional<RandomKey> dropout)
      : build_(build), parameters_(parameters), config_(config), dropout_(dropout) {}

  /// [N, in] -> [N, out].
  ir::Value linear(const std::string& name, ir::Value x, int64_t out);
  /// [N, H, W, in] -> [N, H / stride, W / stride, out] with a size x size filter and "same" padding.
  ir::Value conv(const std::string& name, ir::Value image, int64_t out, int64_t size, int64_t stride = 1,
                 bool zero = false);
  /// GroupNorm; with `scale` and `shift` [N, C] the result is norm(x) * (1 + scale) + shift.
  ir::Value group_norm(const std::string& name, const Image& image, ir::Value scale = {}, ir::Value shift = {});
  /// `embedding`: silu(time embedding) [N, E].
  ir::Value residual(const std::string& name, const Image& image, ir::Value embedding, int64_t out,
                     Resample resample = Resample::none);
  ir::Value attention(const std::string& name, ir::Value image, bool norm = true);
  /// Halves or doubles height and width by a block of its own; `name` is its container's.
  ir::Value resample_block(const std::string& name, ir::Value image, ir::Value embedding, Resample resample,
                           Resampling how);
  /// [N, H, W, in] -> [N, ceil(H / 2), ceil(W / 2), out], 3x3.
  ir::Value strided_conv(const std::string& name, ir::Value image, int64_t out);
  /// [N, ceil(height / 2), ceil(width / 2), in] -> [N, height, width, out], 3x3. Its weight is [in, 3, 3, out].
  ir::Value transposed_conv(const std::string& name, ir::Value image, int64_t out, int64_t height, int64_t width);

 private:
  ir::Value weight_and_conv(const std::string& name, ir::Value image, int64_t out, int64_t size, int64_t stride,
                            int64_t padding, bool zero);
  ir::Value add_bias(ir::Value image, ir::Value bias);
  ir::Value bias(const std::string& name, int64_t channels, int64_t fan_in, bool zero);
  ir::Value drop(ir::Value image);

  ir::Builder& build_;
  ParameterSource& parameters_;
  const UNetConfig& config_;
  std::optional<RandomKey> dropout_;
  int64_t next_dropout_ = 0;
};

}  // namespace difuse::models
