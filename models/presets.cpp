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

/// What guided-diffusion's larger models have in common, by the flags of its README: learned variance on a linear
/// schedule of 1000 steps, residual resampling, scale and shift, two blocks a level.
Preset adm_large(std::string name, std::string description, int64_t size, std::vector<double> mult) {
  Preset p{std::move(name), std::move(description), {}, {}, {}};
  p.unet.image_height = p.unet.image_width = size;
  p.unet.model_channels = 256;
  p.unet.channel_mult = std::move(mult);
  p.unet.attention_resolutions = {size / 32, size / 16, size / 8};
  p.unet.num_head_channels = 64;
  p.unet.use_scale_shift_norm = true;
  p.unet.resblock_updown = true;
  p.unet.num_classes = 1000;
  p.unet.learn_sigma = true;
  p.training.batch = 8;
  return p;
}

const std::vector<double> kMult256 = {1, 1, 2, 2, 4, 4};

Preset adm_imagenet128() {
  Preset p = adm_large("adm-imagenet128", "128x128 colour, 1000 classes, guided-diffusion's ImageNet-128 model", 128,
                       {1, 1, 2, 3, 4});
  p.unet.num_heads = 4;
  p.unet.num_head_channels = 0;
  return p;
}

Preset adm_imagenet256() {
  return adm_large("adm-imagenet256", "256x256 colour, 1000 classes, guided-diffusion's ImageNet-256 model", 256,
                   kMult256);
}

Preset adm_imagenet256_uncond() {
  Preset p = adm_large("adm-imagenet256-uncond",
                       "256x256 colour, guided-diffusion's ImageNet-256 model without classes", 256, kMult256);
  p.unet.num_classes = 0;
  return p;
}

Preset adm_lsun256() {
  Preset p = adm_large("adm-lsun256", "256x256 colour, guided-diffusion's LSUN models", 256, kMult256);
  p.unet.num_classes = 0;
  p.unet.dropout = 0.1;
  return p;
}

Preset adm_imagenet512() {
  return adm_large("adm-imagenet512", "512x512 colour, 1000 classes, guided-diffusion's ImageNet-512 model", 512,
                   {0.5, 1, 1, 2, 2, 4, 4});
}

Preset adm_upsample256() {
  Preset p = adm_large("adm-upsample256", "64x64 to 256x256 colour, 1000 classes, guided-diffusion's upsampler", 256,
                       kMult256);
  p.unet.model_channels = 192;
  p.unet.conditioning_channels = 3;
  p.unet.num_heads = 4;
  p.unet.num_head_channels = 0;
  return p;
}

Preset adm_upsample512() {
  Preset p = adm_large("adm-upsample512", "128x128 to 512x512 colour, 1000 classes, guided-diffusion's upsampler", 512,
                       kMult256);
  p.unet.model_channels = 192;
  p.unet.conditioning_channels = 3;
  p.unet.attention_resolutions = {16, 32};
  return p;
}

Preset unet_cu64() {
  Preset p = adm_seed64();
  p.name = "unet-cu64";
  p.description = "64x64 colour, 20 M parameters, the model of unet.cu";
  p.unet.qkv_order = ir::QkvOrder::qkv_first;
  p.unet.max_period = 1000;
  return p;
}

/// Its network takes the time as it is, beside pixels of about 1: EDM's c_noise, from -1.6 to 1.1, is of their size.
Preset mnist_strided() {
  Preset p{"mnist-strided", "28x28 grey, strided and transposed convolutions with ReLU, no norms", {}, {}, {}};
  p.unet.image_height = p.unet.image_width = 28;
  p.unet.image_channels = 1;
  p.unet.family = UNetFamily::strided;
  p.unet.model_channels = 32;
  p.unet.channel_mult = {1, 2, 4};
  p.diffusion.process = Process::edm;
  p.training.batch = 128;
  p.training.optimizer.learning_rate = 1e-3;
  p.training.optimizer.ema_decays = {0.999};
  return p;
}

}  // namespace

std::vector<Preset> presets() {
  return {tiny(),
          mnist_strided(),
          fashion_demo(),
          mnist_small(),
          adm_seed64(),
          unet_cu64(),
          ddpm_cifar10(),
          adm_imagenet64(),
          adm_upsample512(),
          adm_upsample256(),
          adm_imagenet128(),
          adm_imagenet256_uncond(),
          adm_lsun256(),
          adm_imagenet256(),
          adm_imagenet512()};
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
