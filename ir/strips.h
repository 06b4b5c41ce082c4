// The fixed grain of GroupNorm's statistics: a strip is 8 pixels wide and 16 high, clipped at the image's edge,
// whatever the tile or the batch, so that sums have one order everywhere.
#pragma once

#include <algorithm>
#include <cstdint>

namespace difuse::ir {

inline constexpr int64_t kStripWidth = 8, kStripHeight = 16;

struct Strips {
  int64_t height, width;  // of the image

  int64_t across() const { return (width + kStripWidth - 1) / kStripWidth; }
  int64_t down() const { return (height + kStripHeight - 1) / kStripHeight; }
  int64_t count() const { return across() * down(); }
  int64_t top(int64_t strip) const { return strip / across() * kStripHeight; }
  int64_t left(int64_t strip) const { return strip % across() * kStripWidth; }
  int64_t bottom(int64_t strip) const { return std::min(top(strip) + kStripHeight, height); }
  int64_t right(int64_t strip) const { return std::min(left(strip) + kStripWidth, width); }
  int64_t pixels(int64_t strip) const { return (bottom(strip) - top(strip)) * (right(strip) - left(strip)); }
};

}  // namespace difuse::ir
