// Inputs and states for running model graphs in the reference.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ir/reference.h"
#include "models/parameters.h"
#include "models/unet_config.h"

namespace difuse::models {

/// Numbers that are the same on every machine, unlike those of std's distributions.
class TestNumbers {
 public:
  explicit TestNumbers(uint32_t seed) : engine_(seed) {}
  /// Uniform in (-1, 1).
  double operator()() { return (static_cast<double>(engine_()) + 0.5) * 0x1p-31 - 1; }
  std::vector<double> vector(int64_t count, double scale = 1) {
    std::vector<double> v(static_cast<size_t>(count));
    for (double& x : v) x = scale * (*this)();
    return v;
  }

 private:
  std::mt19937 engine_;
};

inline ir::Tensor scalar_i32(int64_t value) { return {{ir::DType::i32, {}}, {static_cast<double>(value)}}; }
inline ir::Tensor tensor_f32(ir::Shape shape, std::vector<double> data) {
  return {{ir::DType::f32, std::move(shape)}, std::move(data)};
}
inline ir::Tensor seed_tensor(uint32_t low, uint32_t high = 0) {
  return {{ir::DType::u32, {2}}, {static_cast<double>(low), static_cast<double>(high)}};
}
/// first, first + 1, ...
inline ir::Tensor index_tensor(int64_t count, int64_t first = 0) {
  ir::Tensor t({ir::DType::i32, {count}});
  for (int64_t i = 0; i < count; ++i) t.data[static_cast<size_t>(i)] = static_cast<double>(first + i);
  return t;
}

/// A flat vector in which no parameter is zero, those that start at zero included, so that no gradient is zero for that
/// reason alone. Gaps are zero.
inline std::vector<double> parameters_without_zeros(const ParameterLayout& layout, uint32_t seed) {
  TestNumbers numbers(seed);
  std::vector<double> flat(static_cast<size_t>(layout.size()), 0.0);
  for (size_t i = 0; i < layout.specs().size(); ++i) {
    const ParameterSpec& spec = layout.specs()[i];
    const bool matrix = spec.shape.size() > 1;
    const double fan_in = matrix ? static_cast<double>(spec.elements() / spec.shape[0]) : 4;
    const double centre = spec.init.kind == ParameterInit::Kind::ones ? 1 : 0;
    for (int64_t at = 0; at < spec.elements(); ++at) {
      flat[static_cast<size_t>(layout.offsets()[i] + at)] = centre + numbers() / std::sqrt(fan_in);
    }
  }
  return flat;
}

/// Every feature of training at once: not square, two channels, a group that straddles the decoder's concat borders.
inline UNetConfig all_features() {
  UNetConfig c;
  c.image_height = 8, c.image_width = 12, c.image_channels = 2;
  c.model_channels = 24, c.channel_mult = {1, 1.5}, c.num_res_blocks = 1;
  c.attention_resolutions = {2}, c.num_head_channels = 12, c.qkv_order = ir::QkvOrder::qkv_first;
  c.groups = 12, c.use_scale_shift_norm = true, c.resblock_updown = true, c.dropout = 0.1, c.num_classes = 3;
  return c;
}

/// Pixels, index and labels of a batch.
inline ir::TensorMap training_inputs(const UNetConfig& unet, int64_t batch, uint32_t seed) {
  TestNumbers numbers(seed);
  ir::Tensor pixels({ir::DType::u8, {batch, unet.image_height, unet.image_width, unet.image_channels}});
  for (double& p : pixels.data) p = std::floor((numbers() + 1) * 128);
  ir::TensorMap inputs{{"pixels", pixels}, {"index", index_tensor(batch)}};
  if (unet.num_classes > 0) {
    inputs["label"] = index_tensor(batch);
    for (double& l : inputs["label"].data) l = static_cast<double>(static_cast<int64_t>(l) % unet.num_classes);
  }
  return inputs;
}

/// The states of a training step, moments and averages of zeros.
inline ir::TensorMap training_states(const std::vector<double>& params, size_t averages, int64_t step = 0) {
  const auto size = static_cast<int64_t>(params.size());
  const ir::Tensor zeros({ir::DType::f32, {size}});
  ir::TensorMap states{{"seed", seed_tensor(7, 11)},
                       {"step", scalar_i32(step)},
                       {"params", tensor_f32({size}, params)},
                       {"adam_m", zeros},
                       {"adam_v", zeros}};
  for (size_t i = 0; i < averages; ++i) states[i == 0 ? "ema" : "ema_" + std::to_string(i)] = zeros;
  return states;
}

}  // namespace difuse::models
