#include "runtime/png.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/support/file_size_limit.h"
#include "tests/support/temp_folder.h"

namespace difuse::runtime {
namespace {

using namespace difuse::test;

// Encoded by another encoder (Python's zlib and struct): 2x2 RGB and 3x2 grey.
constexpr unsigned char kRgb[] = {
    0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44, 0x52, 0x00, 0x00, 0x00,
    0x02, 0x00, 0x00, 0x00, 0x02, 0x08, 0x02, 0x00, 0x00, 0x00, 0xfd, 0xd4, 0x9a, 0x73, 0x00, 0x00, 0x00, 0x13, 0x49,
    0x44, 0x41, 0x54, 0x78, 0x9c, 0x63, 0xf8, 0xcf, 0xc0, 0xc0, 0x00, 0xc2, 0x0c, 0xff, 0xb9, 0x44, 0xe4, 0x00, 0x1a,
    0x58, 0x03, 0x3a, 0x56, 0x63, 0xa2, 0x3c, 0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82};
constexpr unsigned char kGrey[] = {
    0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44, 0x52, 0x00, 0x00, 0x00,
    0x03, 0x00, 0x00, 0x00, 0x02, 0x08, 0x00, 0x00, 0x00, 0x00, 0xb8, 0x1f, 0x39, 0xc6, 0x00, 0x00, 0x00, 0x10, 0x49,
    0x44, 0x41, 0x54, 0x78, 0x9c, 0x63, 0x60, 0xa8, 0xff, 0xcf, 0xc0, 0xc8, 0xc4, 0x0c, 0x00, 0x08, 0x07, 0x01, 0x85,
    0xe0, 0x48, 0xe8, 0x45, 0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82};

template <std::size_t kSize>
std::string text(const unsigned char (&bytes)[kSize]) {
  return {bytes, bytes + kSize};
}

TEST(Png, ReadsFilesOfAnotherEncoder) {
  const TempFolder folder;
  write_file(folder / "rgb.png", text(kRgb));
  const Image rgb = read_png(folder / "rgb.png");
  EXPECT_EQ(rgb.channels, 3);
  EXPECT_EQ(rgb.pixels, (std::vector<std::uint8_t>{255, 0, 0, 0, 255, 0, 0, 0, 255, 10, 20, 30}));
  write_file(folder / "grey.png", text(kGrey));
  const Image grey = read_png(folder / "grey.png");
  EXPECT_EQ(grey.width, 3);
  EXPECT_EQ(grey.height, 2);
  EXPECT_EQ(grey.channels, 1);
  EXPECT_EQ(grey.pixels, (std::vector<std::uint8_t>{0, 127, 255, 1, 2, 3}));
}

TEST(Png, WritesEveryValueInEveryFormat) {
  const TempFolder folder;
  std::mt19937 random(1);
  for (const int channels : {1, 3, 4}) {
    Image image{37, 41, channels, {}};
    for (int i = 0; i < 37 * 41 * channels; ++i) image.pixels.push_back(static_cast<std::uint8_t>(random()));
    write_png(folder / "a.png", image);
    const std::string file = read_file(folder / "a.png");
    EXPECT_EQ(file.substr(1, 3), "PNG");
    EXPECT_EQ(file[19], 37);  // IHDR: width, height, depth, colour type.
    EXPECT_EQ(file[23], 41);
    EXPECT_EQ(file[24], 8);
    EXPECT_EQ(file[25], channels == 1 ? 0 : channels == 3 ? 2 : 6);
    const Image read = read_png(folder / "a.png");
    EXPECT_EQ(read.channels, channels);
    EXPECT_EQ(read.pixels, image.pixels);
  }
  EXPECT_EQ(folder.entries(), 1u);
}

TEST(Png, RefusesBadImagesFilesAndPaths) {
  const TempFolder folder;
  const auto write = [&](const Image& image) { return error_of([&] { write_png(folder / "a.png", image); }); };
  EXPECT_CONTAINS(write({2, 2, 2, std::vector<std::uint8_t>(8)}), "2 channels");
  EXPECT_CONTAINS(write({2, 2, 1, std::vector<std::uint8_t>(5)}), "5 bytes");
  EXPECT_CONTAINS(write({0, 2, 1, {}}), "0x2");
  EXPECT_CONTAINS(error_of([&] { write_png(folder / "no/a.png", {1, 1, 1, {7}}); }), "does not exist");
  EXPECT_EQ(folder.entries(), 0u);

  const auto read = [&] { return error_of([&] { read_png(folder / "b.png"); }); };
  EXPECT_CONTAINS(read(), "b.png' does not exist");
  write_file(folder / "b.png", "");
  EXPECT_CONTAINS(read(), "it is empty");
  write_file(folder / "b.png", "not a picture");
  EXPECT_CONTAINS(read(), "not a readable PNG");
  for (std::size_t size = 1; size < 60; ++size) {
    write_file(folder / "b.png", text(kRgb).substr(0, size));
    EXPECT_CONTAINS(read(), "b.png' is not a readable PNG") << "at " << size;
  }
}

TEST(Grid, PlacesImagesRowByRow) {
  const std::vector<Image> images = {{2, 1, 1, {1, 2}}, {2, 1, 1, {3, 4}}, {2, 1, 1, {5, 6}}};
  const Image grid = make_grid(images, 2, 1);
  EXPECT_EQ(grid.width, 7);
  EXPECT_EQ(grid.height, 5);
  EXPECT_EQ(grid.pixels, (std::vector<std::uint8_t>{0, 0, 0, 0, 0, 0, 0,  //
                                                    0, 1, 2, 0, 3, 4, 0,  //
                                                    0, 0, 0, 0, 0, 0, 0,  //
                                                    0, 5, 6, 0, 0, 0, 0,  //
                                                    0, 0, 0, 0, 0, 0, 0}));
}

TEST(Grid, HasNoMoreColumnsThanImages) {
  const std::vector<Image> images = {{1, 1, 3, {1, 2, 3}}, {1, 1, 3, {4, 5, 6}}};
  const Image grid = make_grid(images, 8, 0);
  EXPECT_EQ(grid.width, 2);
  EXPECT_EQ(grid.pixels, (std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6}));
}

TEST(Grid, RefusesMixedSizes) {
  const std::vector<Image> images = {{2, 1, 1, {1, 2}}, {1, 2, 1, {3, 4}}};
  EXPECT_CONTAINS(error_of([&] { make_grid(images, 2, 1); }), "one size");
  EXPECT_CONTAINS(error_of([&] { make_grid({}, 2, 1); }), "0 images");
  EXPECT_CONTAINS(error_of([&] { make_grid(images, 0, 1); }), "0 columns");
}

}  // namespace
}  // namespace difuse::runtime
