// What every data reader produces and the loader consumes. This folder turns files into packed uint8 images and images
// into batches; it knows nothing of graphs, devices or normalisation, which happens on the device.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/image/fit.h"

namespace difuse::runtime {

/// Images of one size, packed in memory or in a mapped file. Copies share the pixels, which are never written to.
struct ImageSet {
  std::int64_t count = 0;
  int height = 0;
  int width = 0;
  int channels = 0;
  std::span<const std::uint8_t> pixels;  ///< [count, height, width, channels], in `owner`.
  std::shared_ptr<const void> owner;
  std::vector<std::int32_t> labels;      ///< [count], or empty when the data has none.
  std::vector<std::string> class_names;  ///< Of label 0, 1, ...; empty when the data names none.
  std::string summary;                   ///< One line for the user: what was read and what was ignored.

  std::int64_t image_bytes() const { return std::int64_t{height} * width * channels; }

  /// Makes `bytes` the pixels.
  void own(std::vector<std::uint8_t> bytes);
};

/// The pixels of the first `count` images, brought to a size and channels by resize() and to_channels(). Error with
/// that remedy (wrong usage) where they are misfits.
std::vector<std::uint8_t> fit_pixels(const ImageSet& images, std::int64_t count, const ImageSize& size, int channels,
                                     Crop crop, std::string_view remedy);

/// How many images each label has: [largest label + 1], empty without labels. Negative labels are not counted.
std::vector<std::int64_t> class_counts(const ImageSet& images);

/// Checks on the host that a model with `classes` classes can take the labels. Errors: no labels; a label that is not
/// 0 .. classes - 1 (the first is named, and how many there are).
void check_labels(const ImageSet& images, int classes);

}  // namespace difuse::runtime
