// What a sampler is asked for, and what may become a picture.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "models/sampler.h"
#include "tests/support/temp_folder.h"

namespace difuse::models {
namespace {

TEST(DrawnImages, AreInFewEqualBatches) {
  EXPECT_EQ(even_batch(1, 64), 1);
  EXPECT_EQ(even_batch(16, 16), 16);
  EXPECT_EQ(even_batch(17, 16), 9);
  EXPECT_EQ(even_batch(65, 64), 33);
  EXPECT_EQ(even_batch(100, 16), 15);
}

TEST(DrawnImages, AreNumbers) {
  std::vector<float> pixels(size_t{3} * 4, 0.5f);
  const std::vector<int32_t> images = {7, 8, 9};
  EXPECT_NO_THROW(require_finite(images, pixels));
  for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
    pixels[7] = bad;
    EXPECT_CONTAINS(test::error_of([&] { require_finite(images, pixels); }), "image 8 is not a number");
  }
}

}  // namespace
}  // namespace difuse::models
