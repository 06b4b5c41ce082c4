// One decoder per format, behind runtime/data/image/decode.h, which gives the contract. Each checks the size that the
// header claims before it allocates, and leaves orientation to the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "runtime/data/image/decode.h"

namespace difuse::runtime {

using Fault = std::optional<std::string>;

/// What a format's decoder makes: the image as stored, and how to turn it.
struct Stored {
  Image image;
  ImageKind kind;
  int orientation = 1;  ///< EXIF's 1 .. 8; 1 is upright.
};

Fault decode_png(std::span<const std::byte> file, const DecodeLimits& limits, Stored& stored);
Fault decode_jpeg(std::span<const std::byte> file, const DecodeLimits& limits, Stored& stored);
Fault decode_webp(std::span<const std::byte> file, const DecodeLimits& limits, Stored& stored);

/// The fault of a size that no image can have, or nothing.
Fault check_size(std::uint64_t width, std::uint64_t height, const DecodeLimits& limits);

/// The orientation (1 .. 8) that a TIFF block, such as the contents of an EXIF chunk, gives in its first directory; 1
/// when it gives none or makes no sense. A leading "Exif\0\0" is skipped.
/// Source: EXIF 2.3, 4.5 and 4.6.4 A (tag 0x0112).
int exif_orientation(std::span<const std::byte> tiff);

/// The image that a viewer shows for a stored image with this orientation.
Image turn_upright(Image image, int orientation);

}  // namespace difuse::runtime
