// Image files of every kind that the decoders meet, made in memory. PNG is written by hand (zlib and nothing else), so
// that what reads it is not what wrote it; JPEG and WebP by their own libraries.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/png.h"

namespace difuse::test {

/// The value of channel `c` at (x, y).
using SampleAt = std::function<int(int x, int y, int c)>;

/// An image from samples.
runtime::Image picture(int width, int height, int channels, const SampleAt& sample);

struct PngSpec {
  int width = 0;
  int height = 0;
  int type = 0;  ///< PNG's colour type: 0 grey, 2 RGB, 3 palette, 4 grey + alpha, 6 RGBA.
  int bits = 8;
  bool interlaced = false;
  std::vector<std::array<int, 3>> palette = {};
  std::string transparency = {};   ///< Contents of tRNS; none when empty.
  std::string before_pixels = {};  ///< Whole chunks to put in front of the pixels.
};
std::string encode_png(const PngSpec& spec, const SampleAt& sample);
std::string png_chunk(std::string_view name, std::string_view contents);
/// The file with every chunk's checksum made right again.
std::string repair_checksums(std::string png);

struct JpegSpec {
  int width = 0;
  int height = 0;
  int channels = 3;   ///< 1 grey, 3 RGB in, YCbCr stored, 4 CMYK in.
  bool ycck = false;  ///< Store 4 channels as YCCK.
  bool adobe = true;  ///< Write the Adobe marker where 4 channels have one.
  bool progressive = false;
  bool arithmetic = false;
  int orientation = 0;  ///< EXIF orientation; 0: no EXIF.
};
std::string encode_jpeg(const JpegSpec& spec, const SampleAt& sample);
/// A TIFF block, as EXIF wants it, with this orientation.
std::string exif_block(int orientation, bool big_endian);

/// `image` has 3 or 4 channels.
std::string encode_webp(const runtime::Image& image, bool lossless);
/// Frames of one size, 100 ms each.
std::string encode_webp_animation(const std::vector<runtime::Image>& frames);

}  // namespace difuse::test
