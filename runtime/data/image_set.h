// What every data reader produces and the loader consumes. This folder turns files into packed uint8 images and images
// into batches; it knows nothing of graphs, devices or normalisation, which happens on the device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace difuse::runtime {

/// Images of one size, packed in memory.
struct ImageSet {
  std::int64_t count = 0;
  int height = 0;
  int width = 0;
  int channels = 0;
  std::vector<std::uint8_t> pixels;  ///< [count, height, width, channels]
  std::vector<std::int32_t> labels;  ///< [count], or empty when the data has none.
  std::string summary;               ///< One line for the user: what was read and what was ignored.

  std::int64_t image_bytes() const { return std::int64_t{height} * width * channels; }
};

}  // namespace difuse::runtime
