#include "models/unet_config.h"

#include <gtest/gtest.h>

#include "ir/error.h"
#include "models/presets.h"
#include "models/unet.h"
#include "tests/support/temp_folder.h"

namespace difuse::models {
namespace {

using namespace difuse::test;

std::string refusal(const std::function<void(UNetConfig&)>& change) {
  UNetConfig config = find_preset("mnist-small").unet;
  change(config);
  return error_of([&] { check(config); });
}

TEST(UNetConfig, AcceptsPresets) {
  for (const Preset& preset : presets()) {
    EXPECT_EQ(error_of([&] { check(preset.unet); }), "") << preset.name;
    EXPECT_EQ(error_of([&] { check(preset.diffusion); }), "") << preset.name;
    EXPECT_EQ(error_of([&] { check(preset.training.optimizer); }), "") << preset.name;
  }
}

TEST(UNetConfig, UnknownPresetListsTheNames) {
  const std::string error = error_of([] { find_preset("mnist"); });
  EXPECT_CONTAINS(error, "no model 'mnist'");
  EXPECT_CONTAINS(error, "tiny, mnist-strided, fashion-demo, mnist-small, adm-seed64");
}

TEST(UNetConfig, SizeThatLevelsDoNotDivide) {
  EXPECT_EQ(refusal([](UNetConfig& c) {
              c.channel_mult = {1, 2, 2, 2};
            }),
            "the image height 28 is not divisible by 8 | 4 levels need 32, or use 3 levels");
  EXPECT_EQ(refusal([](UNetConfig& c) { c.image_height = c.image_width = 30; }),
            "the image height 30 is not divisible by 4 | 3 levels need 32, or use 2 levels");
  EXPECT_EQ(refusal([](UNetConfig& c) { c.image_width = 27; }),
            "the image width 27 is not divisible by 4 | 3 levels need 28, or use 1 level");
}

TEST(UNetConfig, GroupsThatDoNotDivideChannels) {
  EXPECT_EQ(refusal([](UNetConfig& c) { c.model_channels = 20; }),
            "level 0 has 20 x 1 = 20 channels, which 32 groups do not divide | use 20 groups, or 32 model channels");
  EXPECT_EQ(refusal([](UNetConfig& c) { c.model_channels = 100, c.groups = 8; }),
            "level 0 has 100 x 1 = 100 channels, which 8 groups do not divide | use 5 groups, or 104 model channels");
  EXPECT_EQ(refusal([](UNetConfig& c) {
              c.channel_mult = {1, 1.5};
            }),
            "level 1 has 32 x 1.5 = 48 channels, which 32 groups do not divide | use 16 groups, or 64 model channels");
  EXPECT_EQ(refusal([](UNetConfig& c) { c.model_channels = 36, c.groups = 9, c.num_heads = 1; }), "");
}

TEST(UNetConfig, AttentionThatDoesNotFit) {
  EXPECT_EQ(refusal([](UNetConfig& c) { c.attention_resolutions = {7}; }),
            "attention_resolutions has 7, where no level is | 3 levels are at 1, 2, 4");
  EXPECT_EQ(refusal([](UNetConfig& c) { c.num_heads = 5; }),
            "attention on 64 channels cannot have 5 heads | set num_heads to 4");
  EXPECT_EQ(refusal([](UNetConfig& c) { c.num_head_channels = 48; }),
            "attention on 64 channels cannot have heads of 48 channels | set num_head_channels to 32");
}

TEST(UNetConfig, ValuesOutOfRange) {
  EXPECT_CONTAINS(refusal([](UNetConfig& c) { c.image_height = 0; }), "image_height is 0");
  EXPECT_CONTAINS(refusal([](UNetConfig& c) { c.image_channels = -1; }), "image_channels is -1");
  EXPECT_CONTAINS(refusal([](UNetConfig& c) { c.channel_mult = {}; }), "entries of channel_mult is 0");
  EXPECT_CONTAINS(refusal([](UNetConfig& c) { c.channel_mult = {0.01}; }), "0 channels");
  EXPECT_CONTAINS(refusal([](UNetConfig& c) { c.channel_mult = {-1}; }), "the entry -1");
  EXPECT_CONTAINS(refusal([](UNetConfig& c) { c.groups = 0; }), "groups is 0");
  EXPECT_CONTAINS(refusal([](UNetConfig& c) { c.dropout = 1; }), "dropout is 1");
  EXPECT_CONTAINS(refusal([](UNetConfig& c) { c.max_period = 0; }), "max_period is 0");
  EXPECT_CONTAINS(refusal([](UNetConfig& c) { c.norm_eps = 0; }), "norm_eps is 0");
}

TEST(UNetConfig, FieldsOfOtherFamilies) {
  EXPECT_EQ(refusal([](UNetConfig& c) { c.encoder_resampling = {Resampling::plain}; }),
            "encoder_resampling has 1 entries for 3 levels | give 2, one for each border between levels, or none");
  EXPECT_CONTAINS(refusal([](UNetConfig& c) { c.decoder_attention_resolutions = {8}; }),
                  "decoder_attention_resolutions has 8, where no level is");
  EXPECT_CONTAINS(refusal([](UNetConfig& c) { c.downsample_padding = 2; }), "downsample_padding is 2");
  EXPECT_CONTAINS(refusal([](UNetConfig& c) { c.freq_shift = 16; }), "freq_shift is 16, of 16 frequencies");
  EXPECT_CONTAINS(refusal([](UNetConfig& c) { c.family = UNetFamily::strided; }),
                  "the strided family has no attention_resolutions");
  EXPECT_EQ(refusal([](UNetConfig& c) {
              c.family = UNetFamily::strided;
              c.attention_resolutions = {};
              c.image_height = 27;
            }),
            "");
}

TEST(UNetConfig, LowResolutionImagesThatDoNotFit) {
  UNetConfig config = find_preset("tiny").unet;
  config.conditioning_channels = 2;
  EXPECT_CONTAINS(error_of([&] { build_training_step(config, {}, {}); }), "second image has 2 channels");
  EXPECT_CONTAINS(error_of([&] { build_forward(config, 1); }), "second image has 2 channels");
  EXPECT_EQ(refusal([](UNetConfig& c) { c.conditioning_channels = 1, c.low_res_factor = 8; }),
            "the image height 28 is not 8 times that of a low-resolution image | choose a height that low_res_factor "
            "divides, such as 32");
  EXPECT_CONTAINS(refusal([](UNetConfig& c) { c.low_res_factor = 1; }), "low_res_factor is 1");
  // A size that is named suits levels and factor.
  EXPECT_CONTAINS(refusal([](UNetConfig& c) { c.conditioning_channels = 1, c.low_res_factor = 3; }), "such as 36");
  EXPECT_CONTAINS(refusal([](UNetConfig& c) {
                    c.conditioning_channels = 1, c.low_res_factor = 3, c.image_height = c.image_width = 30;
                  }),
                  "3 levels need 36");
}

TEST(UNetConfig, NothingIsBuiltFromARefusedConfiguration) {
  UNetConfig config = find_preset("tiny").unet;
  config.groups = 5;
  EXPECT_CONTAINS(error_of([&] { parameter_layout(config); }), "5 groups do not divide");
  EXPECT_CONTAINS(error_of([&] { build_training_step(config, {}, {}); }), "5 groups do not divide");
  config = find_preset("tiny").unet;
  config.learn_sigma = true;
  EXPECT_CONTAINS(error_of([&] { build_training_step(config, {NoiseSchedule::cosine, 1}, {}); }), "learned variance");
}

}  // namespace
}  // namespace difuse::models
