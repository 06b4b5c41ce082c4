// What convolutions on Hopper's engines (device/conv_wgmma.cuh, device/wgrad_wgmma.cuh) take of their tensors.
#pragma once

#include <cstdint>
#include <limits>

namespace difuse::codegen::cuda {

/// Bytes, of a tensor that the copy engine moves.
inline constexpr int64_t kEngineAlignment = 16;

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
