#include "models/blocks.h"

#include <cmath>

#include "models/streams.h"

namespace difuse::models {
namespace {

using ir::Builder;
using ir::Shape;
using ir::Value;

ParameterInit layer_init(int64_t fan_in, bool zero) {
  return zero ? ParameterInit::zeros() : ParameterInit::uniform(fan_in);
}

/// The nearest value with 12 significant bits.
double round_to_12_bits(double value) {
  const double unit = std::ldexp(1.0, std::ilogb(value) - 11);
  return std::nearbyint(value / unit) * unit;
}

Value resample_image(Builder& build, Value image, Resample resample) {
  switch (resample) {
    case Resample::up:
      return build.upsample_nearest(image);
    case Resample::down:
      return build.avg_pool(image);
    case Resample::none:
      break;
  }
  return image;
}

}  // namespace

Image Image::concat(Builder& build, Value a, Value b) {
  Image image(build.concat({a, b}, 3));
  image.parts = {a, b};
  return image;
}

Value timestep_embedding(Builder& build, Value timesteps, const UNetConfig& config) {
  const int64_t half = config.model_channels / 2;
  const double slowest = static_cast<double>(half) - config.freq_shift;
  std::vector<double> high, low;
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = std::exp(-std::log(config.max_period) * static_cast<double>(i) / slowest);
    high.push_back(round_to_12_bits(frequency));
    low.push_back(frequency - high.back());
  }
  const ir::Type row{ir::DType::f32, {half}};
  const Shape shape{build.shape(timesteps)[0], half};
  auto angle = [&](std::vector<double> frequencies) {
    return build.mul(build.broadcast(timesteps, shape, {0}),
                     build.broadcast_channels(build.literal(std::move(frequencies), row), shape));
  };
  const Value a = angle(std::move(high)), b = angle(std::move(low));
  const Value cos_a = build.cos(a), sin_a = build.sin(a), cos_b = build.cos(b), sin_b = build.sin(b);
  const Value cosine = build.sub(build.mul(cos_a, cos_b), build.mul(sin_a, sin_b));
  const Value sine = build.add(build.mul(sin_a, cos_b), build.mul(cos_a, sin_b));
  const Value both = config.cosines_first ? build.concat({cosine, sine}, 1) : build.concat({sine, cosine}, 1);
  return build.pad(both, 1, 0, config.model_channels - 2 * half);
}

Value Blocks::bias(const std::string& name, int64_t channels, int64_t fan_in, bool zero) {
  return parameters_.get(name + ".bias", {channels}, layer_init(fan_in, zero));
}

Value Blocks::linear(const std::string& name, Value x, int64_t out) {
  const int64_t in = build_.shape(x)[1];
  const Value weight = parameters_.get(name + ".weight", {out, in}, ParameterInit::uniform(in));
  const Value product = build_.matmul(x, weight, false, true);
  return build_.add(product, build_.broadcast_channels(bias(name, out, in, false), build_.shape(product)));
}

Value Blocks::weight_and_conv(const std::string& name, Value image, int64_t out, int64_t size, int64_t stride,
                              int64_t padding, bool zero) {
  const int64_t in = build_.shape(image)[3];
  const Value weight = parameters_.get(name + ".weight", {out, size, size, in}, layer_init(in * size * size, zero));
  return build_.conv_fprop(image, weight, stride, padding);
}

Value Blocks::add_bias(Value image, Value bias) {
  return build_.add(image, build_.broadcast_channels(bias, build_.shape(image)));
}

Value Blocks::conv(const std::string& name, Value image, int64_t out, int64_t size, int64_t stride, bool zero) {
  const int64_t fan_in = build_.shape(image)[3] * size * size;
  const Value y = weight_and_conv(name, image, out, size, stride, size / 2, zero);
  return add_bias(y, bias(name, out, fan_in, zero));
}

Value Blocks::strided_conv(const std::string& name, Value image, int64_t out) {
  constexpr int64_t kSize = 3, kStride = 2;
  const int64_t fan_in = build_.shape(image)[3] * kSize * kSize;
  if (config_.downsample_padding == 0) image = build_.pad(build_.pad(image, 1, 0, 1), 2, 0, 1);
  const Value y = weight_and_conv(name, image, out, kSize, kStride, config_.downsample_padding, false);
  return add_bias(y, bias(name, out, fan_in, false));
}

Value Blocks::transposed_conv(const std::string& name, Value image, int64_t out, int64_t height, int64_t width) {
  constexpr int64_t kSize = 3, kStride = 2, kPadding = 1;
  const int64_t in = build_.shape(image)[3];
  // PyTorch takes the second axis of its [in, out, R, S] for the fan-in.
  const int64_t fan_in = out * kSize * kSize;
  const Value weight = parameters_.get(name + ".weight", {in, kSize, kSize, out}, layer_init(fan_in, false));
  return add_bias(build_.conv_dgrad(image, weight, {kStride, kPadding, height, width}), bias(name, out, fan_in, false));
}

Value Blocks::group_norm(const std::string& name, const Image& image, Value scale, Value shift) {
  const Shape shape = build_.shape(image.value);
  const Shape row{shape[0], shape[3]};
  std::vector<Builder::Moments> moments;
  for (Value part : image.parts) moments.push_back(build_.channel_moments(part));
  const auto [mean, rstd] = build_.group_finish(moments, {config_.groups, config_.norm_eps, shape[1], shape[2]});
  Value gamma = build_.broadcast_channels(parameters_.get(name + ".weight", {shape[3]}, ParameterInit::ones()), row);
  Value beta = build_.broadcast_channels(parameters_.get(name + ".bias", {shape[3]}, ParameterInit::zeros()), row);
  if (scale.valid()) {
    const Value factor = build_.add(scale, 1.0);
    gamma = build_.mul(gamma, factor);
    beta = build_.add(build_.mul(beta, factor), shift);
  }
  auto spread = [&](Value v) { return build_.broadcast_image_channels(v, shape); };
  const Value centred = build_.sub(image.value, spread(mean));
  return build_.add(build_.mul(centred, spread(build_.mul(rstd, gamma))), spread(beta));
}

Value Blocks::drop(Value image) {
  if (!dropout_ || config_.dropout == 0) return image;
  Shape sample = build_.shape(image);
  sample.erase(sample.begin());
  const Value draw = build_.random_uniform(dropout_->seed, dropout_->index, dropout_->step,
                                           kDropoutStream + next_dropout_++, std::move(sample));
  // As bytes: the backward pass reads it again, and a byte is all that is in it.
  const Value kept = build_.cast(build_.less_equal(config_.dropout, draw), ir::DType::u8);
  return build_.mul(image, build_.mul(build_.cast(kept, ir::DType::f32), 1 / (1 - config_.dropout)));
}

Value Blocks::residual(const std::string& name, const Image& image, Value embedding, int64_t out, Resample resample) {
  const int64_t in = build_.shape(image.value)[3];
  Value h = build_.silu(group_norm(name + ".in_layers.0", image));
  h = weight_and_conv(name + ".in_layers.2", resample_image(build_, h, resample), out, 3, 1, 1, false);
  const Shape shape = build_.shape(h);
  const Value in_bias = bias(name + ".in_layers.2", out, in * 9, false);
  const Value row = linear(name + ".emb_layers.1", embedding, config_.use_scale_shift_norm ? 2 * out : out);
  Value scale, shift;
  if (config_.use_scale_shift_norm) {
    scale = build_.slice(row, 1, 0, out);
    shift = build_.slice(row, 1, out, 2 * out);
    h = build_.add(h, build_.broadcast_channels(in_bias, shape));
  } else {
    const Value sum = build_.add(row, build_.broadcast_channels(in_bias, build_.shape(row)));
    h = build_.add(h, build_.broadcast_image_channels(sum, shape));
  }
  h = drop(build_.silu(group_norm(name + ".out_layers.0", Image(h), scale, shift)));
  h = conv(name + ".out_layers.3", h, out, 3, 1, true);
  Value skip = resample_image(build_, image.value, resample);
  if (in != out) skip = conv(name + ".skip_connection", skip, out, 1);
  return build_.add(skip, h);
}

Value Blocks::attention(const std::string& name, Value image, bool norm) {
  const Shape shape = build_.shape(image);
  const int64_t channels = shape[3], length = shape[1] * shape[2];
  const Value normed = norm ? group_norm(name + ".norm", Image(image)) : image;
  const Value qkv = conv(name + ".qkv", normed, 3 * channels, 1);
  const Value mixed = build_
                          .attention(build_.reshape(qkv, {shape[0], length, 3 * channels}),
                                     {config_.heads(channels), config_.qkv_order})
                          .out;
  return build_.add(image, conv(name + ".proj_out", build_.reshape(mixed, shape), channels, 1, 1, true));
}

Value Blocks::resample_block(const std::string& name, Value image, Value embedding, Resample resample, Resampling how) {
  const int64_t channels = build_.shape(image)[3];
  if (how == Resampling::residual) return residual(name, Image(image), embedding, channels, resample);
  if (how == Resampling::plain) return resample_image(build_, image, resample);
  if (resample == Resample::down) return strided_conv(name + ".op", image, channels);
  return conv(name + ".conv", build_.upsample_nearest(image), channels, 3);
}

}  // namespace difuse::models
