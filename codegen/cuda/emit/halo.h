// What convolutions on Hopper's engines (device/conv_wgmma.cuh, device/wgrad_wgmma.cuh) take of their tensors.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>

#include "codegen/cuda/cuda_plan.h"

namespace difuse::codegen::cuda {

/// Bytes, of a tensor that the copy engine moves.
inline constexpr int64_t kEngineAlignment = 16;

/// Images side by side in the 8 columns of a tile: as many as have room there, 1, 2 or 4.
inline int64_t images_abreast(int64_t width) { return width > 4 ? 1 : width > 2 ? 2 : 4; }

/// Of images [n, y, x, c]: a box then holds row after row of all of its images, as those abreast lie in a tile.
inline void put_images_before_rows(TensorMapSpec& map) {
  std::swap(map.extents[2], map.extents[3]);
  std::swap(map.box[2], map.box[3]);
  std::swap(map.steps[2], map.steps[3]);
  std::swap(map.strides[1], map.strides[2]);
}

/// Whether a square filter of `taps` x `taps` and its image are fetched with their border: 3x3 with pad up to 2, or
/// 1x1. Channels, elements of `element_bytes`, are whole rows of 16 bytes, and pixels are counted by ints.
inline bool takes_halo(int64_t taps, int64_t pad, int64_t inputs, int64_t outputs, int64_t pixels,
                       int64_t element_bytes) {
  const int64_t row_unit = 16 / element_bytes;
  const bool filter = (taps == 1 && pad == 0) || (taps == 3 && pad <= 2);
  const bool counts = inputs % row_unit == 0 && outputs % row_unit == 0;
  return filter && counts && pixels < std::numeric_limits<int32_t>::max() / 2;
}

}  // namespace difuse::codegen::cuda
