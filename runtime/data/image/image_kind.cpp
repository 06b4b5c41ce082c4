#include "runtime/data/image/image_kind.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <vector>

namespace difuse::runtime {

namespace {

std::string_view name_of(ImageFormat format) {
  switch (format) {
    case ImageFormat::png:
      return "PNG";
    case ImageFormat::jpeg:
      return "JPEG";
    case ImageFormat::webp:
      return "WebP";
  }
  return {};
}

std::string_view name_of(Colour colour) {
  switch (colour) {
    case Colour::grey:
      return "grey";
    case Colour::grey_alpha:
      return "grey + alpha";
    case Colour::palette:
      return "palette";
    case Colour::palette_alpha:
      return "palette + alpha";
    case Colour::rgb:
      return "RGB";
    case Colour::rgba:
      return "RGB + alpha";
    case Colour::cmyk:
      return "CMYK";
  }
  return {};
}

}  // namespace

bool ImageKind::has_alpha() const {
  return colour == Colour::grey_alpha || colour == Colour::palette_alpha || colour == Colour::rgba;
}

std::string describe(const ImageKind& kind) {
  const std::string bits = kind.bits == 8 ? std::string() : fmt::format("{}-bit ", kind.bits);
  return fmt::format("{} {}{}{}{}", name_of(kind.format), bits, name_of(kind.colour), kind.animated ? ", animated" : "",
                     kind.turned ? ", turned" : "");
}

std::string describe_treatment(const ImageKind& kind, int channels) {
  std::vector<std::string_view> steps;
  const bool palette = kind.colour == Colour::palette || kind.colour == Colour::palette_alpha;
  if (kind.animated) steps.push_back("first frame only");
  if (kind.turned) steps.push_back("turned upright (EXIF)");
  if (kind.bits == 16 || (kind.bits < 8 && !palette)) steps.push_back("scaled to 8 bits");
  if (palette) steps.push_back("palette looked up");
  if (kind.colour == Colour::cmyk) steps.push_back("CMYK to RGB");
  if (kind.has_alpha()) {
    steps.push_back(channels == 4 ? "alpha kept" : "alpha over white");
  } else if (channels == 4) {
    steps.push_back("alpha 255 added");
  }
  if (kind.is_grey() && channels != 1) steps.push_back("grey repeated");
  if (!kind.is_grey() && channels == 1) steps.push_back("to grey (Rec.601 luma)");
  return steps.empty() ? "as it is" : fmt::format("{}", fmt::join(steps, ", "));
}

}  // namespace difuse::runtime
