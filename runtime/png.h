// Pictures in memory and as PNG files: sample grids and their tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace difuse::runtime {

struct Image {
  int width = 0;
  int height = 0;
  int channels = 0;                  ///< 1 grey, 3 RGB, 4 RGBA.
  std::vector<std::uint8_t> pixels;  ///< [height, width, channels], row-major.
};

/// Writes an 8-bit PNG through AtomicFile. Error when the path cannot be written or the image contradicts itself.
void write_png(const std::filesystem::path& path, const Image& image);

/// Reads any PNG as 8 bits per channel: grey without alpha as 1 channel, colour as 3, anything with alpha as 4. Error
/// when the file is missing, not a PNG, or damaged.
Image read_png(const std::filesystem::path& path);

/// Tiles images of one size row by row, `columns` in a row (fewer when there are fewer images), with `padding` black
/// pixels around and between them; unused cells stay black (and, in RGBA, transparent). Width is
/// columns * (width + padding) + padding. Error when the list is empty, the sizes differ or an argument is out of
/// range.
Image make_grid(std::span<const Image> images, int columns, int padding);

}  // namespace difuse::runtime
