// From an image of any size and channel count to what a model takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/png.h"

namespace difuse::runtime {

/// How an image of another shape becomes height x width.
enum class Crop : std::uint8_t {
  center,  ///< Shrunk or enlarged, its shape kept, until it just covers the size; what sticks out is cut evenly.
  none,    ///< Nothing is cut: squeezed to the size, its shape not kept.
};

std::string_view to_string(Crop crop);
std::optional<Crop> parse_crop(std::string_view text);

struct ImageSize {
  int height = 0;
  int width = 0;
  bool operator==(const ImageSize&) const = default;
};

/// "64" is 64x64, "48x80" is height 48, width 80. Error (naming `flag`) for anything else, and for a side that is not
/// 1 .. 65536.
ImageSize parse_image_size(std::string_view flag, std::string_view text);

/// "64x64".
std::string describe(const ImageSize& size);

/// What resize() does to images of one size, all or most of them, for the user; `from` and `to` differ.
std::string describe_fit(const ImageSize& from, const ImageSize& to, Crop crop);

/// The image with 1, 3 or 4 channels. Grey is repeated; colour becomes grey by Rec.601 luma (0.299 R + 0.587 G +
/// 0.114 B), which leaves R = G = B as it is; alpha is composed over white; a missing alpha is 255.
Image to_channels(Image image, int channels);

/// Why an image cannot be brought to `size`, as the rest of a sentence whose subject is the file, or nothing: it is so
/// long and thin that it would be millions of pixels long before it is cut.
std::optional<std::string> misfit(const Image& image, const ImageSize& size, Crop crop);

/// The image in `size`; it must not be a misfit. Along an axis that shrinks, each pixel is the mean of the area that it
/// covers; along one that grows, pixel centres are interpolated linearly; equal sizes are copied. All in exact
/// integers, rounded once to the nearest, so an image that has the size already comes back unchanged. With 4 channels
/// colours are weighted by alpha. Pixels are averaged as they are stored (sRGB), as the usual tools do.
Image resize(const Image& image, const ImageSize& size, Crop crop);

}  // namespace difuse::runtime
