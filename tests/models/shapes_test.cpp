// Image sizes, widths and batches that are multiples of nothing: each trains as the reference says, or is refused
// before anything is built.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "models/unet.h"
#include "tests/models/step_case.h"
#include "tests/support/backend/gpu.h"
#include "tests/support/temp_folder.h"

namespace difuse::models {
namespace {

struct ShapeCase {
  std::string name;
  int64_t height, width, model_channels, groups;
  std::vector<double> channel_mult;
  int64_t batch;
  int64_t image_channels = 3;
  bool learns_variance = false;  ///< Twice the channels out.
};

// Two channels or more a group: with one, a norm cancels the bias before it, whose gradient is then rounding noise.
const std::vector<ShapeCase> kCases = {
    {"size_28_three_levels_batch_1", 28, 28, 4, 2, {1, 2, 2}, 1},
    {"size_30_two_levels_batch_3", 30, 30, 6, 2, {1, 2}, 3},
    {"size_48x80_four_levels_batch_1", 48, 80, 4, 2, {1, 1, 2, 2}, 1},
    {"size_48x80_five_levels_batch_3", 48, 80, 4, 1, {0.5, 1, 1, 1, 2}, 3},
    {"width_20_batch_13", 8, 8, 20, 10, {1, 1.5}, 13},
    {"width_20_groups_5_batch_1", 6, 10, 20, 5, {1, 2}, 1},
    {"width_36_batch_13", 6, 6, 36, 12, {1, 1}, 13},
    {"width_36_groups_9_batch_3", 6, 6, 36, 9, {1, 1.5}, 3},
    {"width_100_batch_3", 8, 4, 100, 25, {1, 1}, 3},
    {"width_100_groups_10_batch_1", 4, 4, 100, 10, {1, 0.5}, 1},
    {"width_96_one_channel_batch_13", 8, 8, 96, 32, {1, 1}, 13, 1},
    {"six_channels_out_batch_3", 8, 12, 32, 16, {1, 1}, 3, 3, true},
};

std::ostream& operator<<(std::ostream& out, const ShapeCase& shape) { return out << shape.name; }

UNetConfig config_of(const ShapeCase& shape) {
  UNetConfig c;
  c.image_height = shape.height, c.image_width = shape.width, c.image_channels = shape.image_channels;
  c.model_channels = shape.model_channels, c.channel_mult = shape.channel_mult, c.groups = shape.groups;
  c.num_res_blocks = 1, c.num_heads = 2, c.learn_sigma = shape.learns_variance;
  return c;
}

class Shapes : public ::testing::TestWithParam<ShapeCase> {};

StepCase step_of(const ShapeCase& shape) {
  TrainingConfig training;
  training.batch = shape.batch;
  return mid_training_step(config_of(shape), {}, training);
}

TEST_P(Shapes, OneStepAgreesWithTheReference) { expect_cpu_agrees(step_of(GetParam()), 1e-5); }

class GpuShapes : public Shapes {};

TEST_P(GpuShapes, OneStepAgreesWithTheReference) {
  DIFUSE_NEED_GPU(gpu);
  expect_agrees(step_of(GetParam()), gpu, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Cases, Shapes, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });
INSTANTIATE_TEST_SUITE_P(Cases, GpuShapes, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });

std::string refusal(const ShapeCase& shape) {
  TrainingConfig training;
  training.batch = shape.batch;
  return test::error_of([&] { build_training_step(config_of(shape), {}, training); });
}

TEST(ShapesRefused, SizesThatLevelsDoNotHalve) {
  EXPECT_EQ(refusal({"", 28, 28, 32, 32, {1, 2, 2, 2}, 1}),
            "the image height 28 is not divisible by 8 | 4 levels need 32, or use 3 levels");
  EXPECT_EQ(refusal({"", 30, 30, 32, 32, {1, 2, 2, 2}, 1}),
            "the image height 30 is not divisible by 8 | 4 levels need 32, or use 2 levels");
  EXPECT_EQ(refusal({"", 48, 80, 32, 32, {1, 1, 2, 2, 4, 4}, 1}),
            "the image height 48 is not divisible by 32 | 6 levels need 64, or use 5 levels");
}

TEST(ShapesRefused, WidthsThatGroupsDoNotDivide) {
  for (const auto& [width, remedy] :
       {std::pair{20, "use 20 groups, or 32 model channels"}, std::pair{36, "use 18 groups, or 64 model channels"},
        std::pair{100, "use 25 groups, or 128 model channels"}}) {
    const std::string error = refusal({"", 32, 32, width, 32, {1, 2}, 1});
    EXPECT_CONTAINS(error, std::to_string(width) + " channels, which 32 groups do not divide");
    EXPECT_CONTAINS(error, remedy);
  }
}

// What a refusal proposes is accepted.
TEST(ShapesRefused, TheRemediesWork) {
  EXPECT_EQ(refusal({"", 32, 32, 32, 32, {1, 2, 2, 2}, 1}), "");
  EXPECT_EQ(refusal({"", 28, 28, 32, 32, {1, 2, 2}, 1}), "");
  EXPECT_EQ(refusal({"", 30, 30, 32, 32, {1, 2}, 1}), "");
  EXPECT_EQ(refusal({"", 48, 80, 32, 32, {1, 1, 2, 2, 4}, 1}), "");
  EXPECT_EQ(refusal({"", 32, 32, 20, 20, {1, 2}, 1}), "");
  EXPECT_EQ(refusal({"", 32, 32, 36, 18, {1, 2}, 1}), "");
  EXPECT_EQ(refusal({"", 32, 32, 100, 25, {1, 2}, 1}), "");
}

}  // namespace
}  // namespace difuse::models
