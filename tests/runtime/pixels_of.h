#pragma once

#include <cstdint>
#include <vector>

#include "runtime/data/image_set.h"

namespace difuse::runtime {

inline std::vector<std::uint8_t> pixels_of(const ImageSet& set) { return {set.pixels.begin(), set.pixels.end()}; }

}  // namespace difuse::runtime
