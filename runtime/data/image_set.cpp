#include "runtime/data/image_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "ir/error.h"

namespace difuse::runtime {

void ImageSet::own(std::vector<std::uint8_t> bytes) {
  auto holder = std::make_shared<const std::vector<std::uint8_t>>(std::move(bytes));
  pixels = *holder;
  owner = std::move(holder);
}

std::vector<std::uint8_t> fit_pixels(const ImageSet& images, std::int64_t count, const ImageSize& size, int channels,
                                     Crop crop, std::string_view remedy) {
  const auto bytes = static_cast<std::size_t>(images.image_bytes());
  std::vector<std::uint8_t> pixels;
  pixels.reserve(std::uint64_t(count) * size.height * size.width * channels);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::span<const std::uint8_t> stored = images.pixels.subspan(i * bytes, bytes);
    const Image image{images.width, images.height, images.channels, {stored.begin(), stored.end()}};
    if (const auto fault = misfit(image, size, crop)) {
      throw Error(fmt::format("each image {}", *fault), std::string(remedy), ExitCode::wrong_usage);
    }
    const Image fitted = to_channels(resize(image, size, crop), channels);
    pixels.insert(pixels.end(), fitted.pixels.begin(), fitted.pixels.end());
  }
  return pixels;
}

std::vector<std::int64_t> class_counts(const ImageSet& images) {
  std::vector<std::int64_t> counts;
  if (images.labels.empty()) return counts;
  const std::int32_t largest = *std::max_element(images.labels.begin(), images.labels.end());
  counts.resize(std::max(0, largest + 1));
  for (const std::int32_t label : images.labels) {
    if (label >= 0) ++counts[label];
  }
  return counts;
}

void check_labels(const ImageSet& images, int classes) {
  if (images.labels.empty()) {
    throw Error("the model has classes, but the data has no labels",
                "use --class-from-folder with a folder of folders, put an IDX label file beside the images, or train a "
                "model without classes",
                ExitCode::wrong_usage);
  }
  const auto bad = [&](std::int32_t label) { return label < 0 || label >= classes; };
  const auto first = std::find_if(images.labels.begin(), images.labels.end(), bad);
  if (first == images.labels.end()) return;
  const auto [least, most] = std::minmax_element(images.labels.begin(), images.labels.end());
  throw Error(
      fmt::format("image {} has label {}, but the model has {} classes (0 to {}); {} of {} labels are out of "
                  "range, and the labels are {} to {}",
                  first - images.labels.begin(), *first, classes, classes - 1,
                  std::count_if(images.labels.begin(), images.labels.end(), bad), images.labels.size(), *least, *most),
      *least < 0 ? "correct the labels"
                 : fmt::format("give the model {0} classes (--classes {0}), or correct the labels", *most + 1),
      ExitCode::wrong_usage);
}

}  // namespace difuse::runtime
