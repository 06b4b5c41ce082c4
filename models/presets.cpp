#include "models/presets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "ir/error.h"

namespace difuse::models {
namespace {

/// Groups of four channels or more: with one channel a group, a norm would cancel the time embedding added before it.
Preset tiny() {
  Preset p{"tiny", "8x8 grey, for tests: every kind of block, milliseconds a step", {}, {}, {}};
  p.unet.image_height = p.unet.image_width = 8;
  p.unet.image_channels = 1;
  p.unet.model_channels = 32;
  p.unet.channel_mult = {1, 1};
  p.unet.num_res_blocks = 1;
  p.unet.attention_resolutions = {2};
  p.unet.num_heads = 2;
  p.unet.groups = 8;
  p.training.batch = 8;
  p.training.optimizer.learning_rate = 1e-3;
  p.training.optimizer.ema_decays = {0.99};
  return p;
}

/// Most of the arithmetic is at 14x14 and 7x7, where garments take their shape; at full size 16 channels refine it. Two
/// channels or more a group, for the reason given at tiny.
Preset fashion_demo() {
  Preset p{"fashion-demo", "28x28 grey, small enough to learn garments in minutes on two cores", {}, {}, {}};
  p.unet.image_height = p.unet.image_width = 28;
  p.unet.image_channels = 1;
  p.unet.model_channels = 32;
  p.unet.channel_mult = {0.5, 2, 2};
  p.unet.num_res_blocks = 1;
  p.unet.attention_resolutions = {4};
  p.unet.num_heads = 4;
  p.unet.groups = 8;
  p.unet.use_scale_shift_norm = true;
  p.unet.conv_resample = false;
  p.diffusion.schedule = NoiseSchedule::cosine;
  p.training.batch = 64;
  p.training.optimizer.learning_rate = 1e-3;
  p.training.optimizer.warmup = 100;
  p.training.optimizer.clip_norm = 1;
  p.training.optimizer.ema_decays = {0.995};
  return p;
}

Preset mnist_small() {
  Preset p{"mnist-small", "28x28 grey, 1.1 M parameters", {}, {}, {}};
  p.unet.image_height = p.unet.image_width = 28;
  p.unet.image_channels = 1;
  p.unet.model_channels = 32;
  p.unet.channel_mult = {1, 2, 2};
  p.unet.num_res_blocks = 1;
  p.unet.attention_resolutions = {4};
  p.unet.num_heads = 4;
  p.training.batch = 128;
  p.training.optimizer.learning_rate = 2e-4;
  p.training.optimizer.ema_decays = {0.999};
  return p;
}

Preset adm_seed64() {
  Preset p{"adm-seed64", "64x64 colour, 20 M parameters, parameter-free resampling", {}, {}, {}};
  p.unet.image_height = p.unet.image_width = 64;
  p.unet.model_channels = 64;
  p.unet.channel_mult = {1, 2, 3, 4};
  p.unet.num_res_blocks = 2;
  p.unet.attention_resolutions = {4, 8};
  p.unet.num_head_channels = 32;
  p.unet.conv_resample = false;
  p.training.batch = 32;
  return p;
}

Preset ddpm_cifar10() {
  Preset p{"ddpm-cifar10", "32x32 colour, 36 M parameters, DDPM's CIFAR-10 model", {}, {}, {}};
  p.unet.image_height = p.unet.image_width = 32;
  p.unet.model_channels = 128;
  p.unet.channel_mult = {1, 2, 2, 2};
  p.unet.num_res_blocks = 2;
  p.unet.attention_resolutions = {2};
  p.unet.dropout = 0.1;
  p.training.batch = 128;
  p.training.optimizer.learning_rate = 2e-4;
  p.training.optimizer.warmup = 5000;
  p.training.optimizer.clip_norm = 1;
  return p;
}

Preset adm_imagenet64() {
  Preset p{"adm-imagenet64",
           "64x64 colour, 1000 classes, 296 M parameters, guided-diffusion's ImageNet-64 model",
           {},
           {},
           {}};
  p.unet.image_height = p.unet.image_width = 64;
  p.unet.model_channels = 192;
  p.unet.channel_mult = {1, 2, 3, 4};
  p.unet.num_res_blocks = 3;
  p.unet.attention_resolutions = {2, 4, 8};
  p.unet.num_head_channels = 64;
  p.unet.qkv_order = ir::QkvOrder::qkv_first;
  p.unet.use_scale_shift_norm = true;
  p.unet.resblock_updown = true;
  p.unet.dropout = 0.1;
  p.unet.num_classes = 1000;
  p.unet.learn_sigma = true;
  p.diffusion.schedule = NoiseSchedule::cosine;
  p.training.batch = 32;
  return p;
}

}  // namespace

std::vector<Preset> presets() {
  return {tiny(), fashion_demo(), mnist_small(), adm_seed64(), ddpm_cifar10(), adm_imagenet64()};
}

Preset find_preset(std::string_view name) {
  std::vector<std::string> names;
  for (Preset& p : presets()) {
    if (p.name == name) return p;
    names.push_back(p.name);
  }
  throw Error(fmt::format("there is no model '{}'", name), fmt::format("choose one of {}", fmt::join(names, ", ")),
              ExitCode::wrong_usage);
}

}  // namespace difuse::models
