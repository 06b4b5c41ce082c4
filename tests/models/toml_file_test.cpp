#include "models/config/toml_file.h"

#include <gtest/gtest.h>

#include "models/presets.h"
#include "models/run/setup.h"
#include "tests/support/temp_folder.h"

namespace difuse::models {
namespace {

TEST(TomlFile, EveryPresetReadsBackEqual) {
  const test::TempFolder folder;
  for (const Preset& preset : presets()) {
    for (const std::string& name : {preset.name, std::string()}) {
      test::write_file(folder / "a.toml", to_toml(name, preset.unet, preset.diffusion, preset.training));
      const RunConfig config = config_of_file(folder / "a.toml");
      EXPECT_EQ(config.run.model, name.empty() ? "a.toml" : name);
      EXPECT_EQ(config.unet, preset.unet) << preset.name;
      EXPECT_EQ(config.diffusion, preset.diffusion) << preset.name;
      EXPECT_EQ(config.training, preset.training) << preset.name;
    }
  }
}

TEST(TomlFile, EveryFieldReadsBack) {
  const test::TempFolder folder;
  UNetConfig unet;
  unet.image_height = 48, unet.image_width = 80, unet.image_channels = 4, unet.model_channels = 12;
  unet.channel_mult = {0.5, 1, 1.0 / 3}, unet.num_res_blocks = 1, unet.attention_resolutions = {1, 4};
  unet.num_heads = 2, unet.num_head_channels = 2, unet.qkv_order = ir::QkvOrder::qkv_first, unet.groups = 2;
  unet.norm_eps = 1e-6, unet.use_scale_shift_norm = true, unet.conv_resample = false, unet.resblock_updown = true;
  unet.dropout = 0.1, unet.num_classes = 7, unet.learn_sigma = true, unet.max_period = 1234.5;
  const DiffusionConfig diffusion{NoiseSchedule::cosine, 250};
  TrainingConfig training;
  training.batch = 6, training.accumulate = 3;
  training.optimizer = {.learning_rate = 1e-5, .beta1 = 0.8, .beta2 = 0.99, .eps = 1e-7, .weight_decay = 0.01};
  training.optimizer.clip_norm = 2, training.optimizer.warmup = 9, training.optimizer.total_steps = 1000;
  training.optimizer.schedule = LearningRateSchedule::cosine, training.optimizer.ema_decays = {0.9, 0.99999};
  test::write_file(folder / "a.toml", to_toml({}, unet, diffusion, training));
  const RunConfig config = config_of_file(folder / "a.toml");
  EXPECT_EQ(config.unet, unet);
  EXPECT_EQ(config.diffusion, diffusion);
  EXPECT_EQ(config.training, training);
}

TEST(TomlFile, WhatIsLeftOutHasTheDefault) {
  const test::TempFolder folder;
  test::write_file(folder / "a.toml", "[training]\nlearning_rate = 1\nmicrobatch = 16\n");
  const RunConfig config = config_of_file(folder / "a.toml");
  EXPECT_EQ(config.unet, UNetConfig());
  EXPECT_EQ(config.training.optimizer.learning_rate, 1);
  EXPECT_EQ(config.training.batch, 16);
  EXPECT_EQ(config.training.accumulate, 4);
}

}  // namespace
}  // namespace difuse::models
