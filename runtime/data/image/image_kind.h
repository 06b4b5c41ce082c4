// What an image file was before it became 8-bit pixels, in words for the user.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

namespace difuse::runtime {

enum class ImageFormat : std::uint8_t { png, jpeg, webp };

/// Grey or palette with alpha includes a transparent colour (tRNS). CMYK includes YCCK.
enum class Colour : std::uint8_t { grey, grey_alpha, palette, palette_alpha, rgb, rgba, cmyk };

struct ImageKind {
  ImageFormat format = ImageFormat::png;
  Colour colour = Colour::grey;
  int bits = 8;           ///< Per channel, or of a palette index: 1, 2, 4, 8 or 16.
  bool animated = false;  ///< More than one frame; the first is taken.
  bool turned = false;    ///< EXIF says that the camera was not upright.

  bool has_alpha() const;
  bool is_grey() const { return colour == Colour::grey || colour == Colour::grey_alpha; }

  /// Orders kinds in the table: by format, colour, bits.
  auto key() const { return std::tuple(format, colour, bits, animated, turned); }
  bool operator<(const ImageKind& other) const { return key() < other.key(); }
  bool operator==(const ImageKind& other) const { return key() == other.key(); }
};

/// Such as "PNG 16-bit grey + alpha" or "WebP RGB, animated".
std::string describe(const ImageKind& kind);

/// What becomes of it on the way to `channels` channels of 8 bits, such as "scaled to 8 bits, alpha over white".
std::string describe_treatment(const ImageKind& kind, int channels);

}  // namespace difuse::runtime
