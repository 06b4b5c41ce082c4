#include "runtime/data/image/fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/support/images/encoders.h"
#include "tests/support/temp_folder.h"

namespace difuse::runtime {
namespace {

using namespace difuse::test;

Image noise(int width, int height, int channels) {
  std::mt19937 random(7);
  return picture(width, height, channels, [&](int, int, int) { return static_cast<int>(random() % 256); });
}

/// The weight of source pixel `j` of `from` in output `i` of `to`, in doubles and straight from the definition.
double weight(int from, int to, int i, int j) {
  if (to <= from) {
    const double scale = static_cast<double>(from) / to;
    const double overlap = std::min((i + 1) * scale, j + 1.0) - std::max(i * scale, static_cast<double>(j));
    return std::max(0.0, overlap) / scale;
  }
  const double at = std::clamp((i + 0.5) * from / to - 0.5, 0.0, from - 1.0);
  return std::max(0.0, 1 - std::abs(at - j));
}

TEST(Resize, IsTheDefinedMean) {
  for (const auto& [from_w, from_h, to_w, to_h] :
       {std::array{12, 8, 4, 4}, std::array{13, 7, 5, 3}, std::array{5, 3, 13, 7}, std::array{9, 4, 4, 9},
        std::array{1, 1, 3, 2}, std::array{64, 1, 1, 64}, std::array{17, 17, 17, 5}}) {
    for (const int channels : {1, 3}) {
      const Image image = noise(from_w, from_h, channels);
      const Image resized = resize(image, {to_h, to_w}, Crop::none);
      ASSERT_EQ(resized.width, to_w);
      ASSERT_EQ(resized.height, to_h);
      for (int y = 0; y < to_h; ++y) {
        for (int x = 0; x < to_w; ++x) {
          for (int c = 0; c < channels; ++c) {
            double sum = 0;
            for (int v = 0; v < from_h; ++v) {
              for (int u = 0; u < from_w; ++u) {
                sum += weight(from_h, to_h, y, v) * weight(from_w, to_w, x, u) *
                       image.pixels[(v * from_w + u) * channels + c];
              }
            }
            ASSERT_NEAR(resized.pixels[(y * to_w + x) * channels + c], sum, 0.5 + 1e-9);
          }
        }
      }
    }
  }
}

TEST(Resize, LeavesTheRightSizeAlone) {
  const Image image = noise(11, 6, 4);
  for (const Crop crop : {Crop::center, Crop::none}) {
    EXPECT_EQ(resize(image, {6, 11}, crop).pixels, image.pixels);
  }
}

TEST(Resize, CutsAroundTheCentre) {
  // Twice as high as asked and wider: shrunk by two, then columns 1 and 2 of the four that are left.
  const Image image = picture(8, 4, 1, [](int x, int, int) { return x / 2 * 10; });
  const Image cut = resize(image, {2, 2}, Crop::center);
  EXPECT_EQ(cut.pixels, (std::vector<std::uint8_t>{10, 20, 10, 20}));
  const Image tall = picture(4, 8, 1, [](int, int y, int) { return y / 2 * 10; });
  EXPECT_EQ(resize(tall, {2, 2}, Crop::center).pixels, (std::vector<std::uint8_t>{10, 10, 20, 20}));
  const Image squeezed = resize(image, {2, 2}, Crop::none);
  EXPECT_EQ(squeezed.pixels, (std::vector<std::uint8_t>{5, 25, 5, 25}));
}

TEST(Resize, CutsTheSameAsResizingAndCutting) {
  for (const auto& [width, height] : {std::array{37, 21}, std::array{21, 37}, std::array{5, 9}, std::array{16, 16}}) {
    const Image image = noise(width, height, 3);
    const Image cut = resize(image, {12, 10}, Crop::center);
    const double scale = std::max(12.0 / height, 10.0 / width);
    const int uncut_h = std::max(12, static_cast<int>(std::floor(height * scale + 0.5)));
    const int uncut_w = std::max(10, static_cast<int>(std::floor(width * scale + 0.5)));
    const Image whole = resize(image, {uncut_h, uncut_w}, Crop::none);
    for (int y = 0; y < 12; ++y) {
      for (int x = 0; x < 10; ++x) {
        const int from = ((y + (uncut_h - 12) / 2) * uncut_w + x + (uncut_w - 10) / 2) * 3;
        ASSERT_EQ(cut.pixels[(y * 10 + x) * 3], whole.pixels[from]);
      }
    }
  }
}

TEST(Resize, TransparentPixelsGiveNoColour) {
  const Image image{2, 1, 4, {200, 100, 50, 255, 0, 255, 0, 0}};
  EXPECT_EQ(resize(image, {1, 1}, Crop::none).pixels, (std::vector<std::uint8_t>{200, 100, 50, 128}));
  const Image clear{2, 1, 4, {200, 100, 50, 0, 0, 255, 0, 0}};
  EXPECT_EQ(resize(clear, {1, 1}, Crop::none).pixels, (std::vector<std::uint8_t>{0, 0, 0, 0}));
}

TEST(Resize, ExtremesAreExactOrRefused) {
  const Image wide = picture(1'000'000, 1, 1, [](int, int, int) { return 255; });
  EXPECT_EQ(misfit(wide, {4, 4}, Crop::none), std::nullopt);
  EXPECT_EQ(resize(wide, {4, 4}, Crop::none).pixels, std::vector<std::uint8_t>(16, 255));
  EXPECT_EQ(misfit(wide, {4, 4}, Crop::center), std::nullopt);
  EXPECT_EQ(resize(wide, {4, 4}, Crop::center).pixels, std::vector<std::uint8_t>(16, 255));
  EXPECT_CONTAINS(misfit(wide, {64, 64}, Crop::center).value_or(""), "too long and thin (1 x 1000000) to become 64x64");
}

TEST(Channels, ConvertsBetweenAll) {
  const auto convert = [](const std::vector<std::uint8_t>& pixel, int channels) {
    return to_channels(Image{1, 1, static_cast<int>(pixel.size()), pixel}, channels).pixels;
  };
  using Pixel = std::vector<std::uint8_t>;
  EXPECT_EQ(convert({7}, 1), (Pixel{7}));
  EXPECT_EQ(convert({7}, 3), (Pixel{7, 7, 7}));
  EXPECT_EQ(convert({7}, 4), (Pixel{7, 7, 7, 255}));
  EXPECT_EQ(convert({255, 0, 0}, 1), (Pixel{76}));
  EXPECT_EQ(convert({0, 255, 0}, 1), (Pixel{150}));
  EXPECT_EQ(convert({0, 0, 255}, 1), (Pixel{29}));
  EXPECT_EQ(convert({1, 2, 3}, 4), (Pixel{1, 2, 3, 255}));
  EXPECT_EQ(convert({10, 20, 30, 0}, 3), (Pixel{255, 255, 255}));
  EXPECT_EQ(convert({10, 20, 30, 255}, 3), (Pixel{10, 20, 30}));
  EXPECT_EQ(convert({0, 100, 255, 128}, 3), (Pixel{127, 177, 255}));
  EXPECT_EQ(convert({0, 0, 0, 128}, 1), (Pixel{127}));
  for (int value = 0; value < 256; ++value) {
    const auto v = static_cast<std::uint8_t>(value);
    EXPECT_EQ(convert({v, v, v}, 1), (Pixel{v}));
    EXPECT_EQ(convert({v, v, v, 255}, 1), (Pixel{v}));
  }
}

TEST(ImageSize, ReadsOneOrTwoSides) {
  EXPECT_EQ(parse_image_size("--image-size", "64"), (ImageSize{64, 64}));
  EXPECT_EQ(parse_image_size("--image-size", "48x80"), (ImageSize{48, 80}));
  for (const char* text : {"", "0", "x", "4x", "x4", "4x0", "-4", "4x5x6", " 4", "4.5", "65537", "99999999999"}) {
    EXPECT_CONTAINS(error_of([&] { parse_image_size("--image-size", text); }), "--image-size");
  }
}

}  // namespace
}  // namespace difuse::runtime
