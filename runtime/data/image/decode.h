// Image files into 8-bit pixels. The format is told by content, never by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "runtime/data/image/image_kind.h"
#include "runtime/png.h"

namespace difuse::runtime {

struct DecodeLimits {
  std::uint64_t max_pixels = std::uint64_t{1} << 28;  ///< Width x height.
  std::uint64_t max_file_bytes = std::uint64_t{1} << 30;
};

/// An image as its file has it: 1 channel for grey, 3 for colour, 4 (straight alpha) for anything with alpha.
///
/// - 16 bits become round(v / 257), 1, 2 and 4 bits v * 255 / (2^bits - 1). Gamma and colour profiles are not applied:
///   pixels are what the file stores.
/// - CMYK and YCCK become R = C * K / 255 and so on; with an Adobe marker the file stores the complements already (as
///   all of Adobe's programs write), without one they are taken first.
/// - The first frame of an animation stands for it, on a transparent canvas where it does not cover all.
/// - EXIF orientation is applied, so that width and height are those of the upright image.
struct Decoded {
  Image image;
  ImageKind kind;
};

/// The format that the first bytes of a file (16 or more, where it has them) announce.
std::optional<ImageFormat> format_of(std::span<const std::byte> head);

/// What a file that is no PNG, JPEG or WebP is, by its first bytes: "a GIF image", "an HTML page", "empty".
std::string describe_foreign(std::span<const std::byte> head);

/// Decodes a file's bytes into `decoded`. Returns what is wrong, as the rest of a sentence whose subject is the file
/// ("is truncated"), or nothing. Truncated and damaged data are always a fault, also where a decoder could guess the
/// rest. Never throws on bad data; std::bad_alloc when memory ends.
std::optional<std::string> decode(std::span<const std::byte> file, const DecodeLimits& limits, Decoded& decoded);

/// Reads and decodes `path`; returns as decode().
std::optional<std::string> decode_file(const std::filesystem::path& path, const DecodeLimits& limits, Decoded& decoded);

}  // namespace difuse::runtime
