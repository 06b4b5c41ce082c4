// The gradient of a filter as Hopper's engines compute it (device/wgrad_wgmma.cuh).
#pragma once

#include <optional>

#include "codegen/cuda/kernel_spec.h"
#include "ir/device_spec.h"
#include "ir/graph.h"

namespace difuse::codegen::cuda {

struct HaloWgrad {
  ir::Value value;  ///< The gradient in the body.
  int image = 0,
      gradient = 0;  ///< Inputs of the body: x, and dy, which is as high and wide as the convolution's result.

  int64_t batch = 0;
  int64_t image_h = 0, image_w = 0, inputs = 0;
  int64_t height = 0, width = 0, outputs = 0;
  int64_t taps = 1, pad = 0;  ///< A filter of taps x taps.

  // How it is cut, by its shape alone. As in device/wgrad_wgmma.cuh: tiles of pixels, 8 wide, `rows` high, in each of
  // `images` images; blocks of the result of 64 times `row_chunks` output and 64 times `column_chunks` input channels.
  int64_t rows = 8, images = 1;
  int64_t row_chunks = 1, column_chunks = 1;

  /// A filter of one tap sees all pixels of all images as one line.
  bool is_line() const { return taps == 1; }
  int64_t pixels() const { return 8 * rows * images; }
  /// Of all images.
  int64_t tiles() const;
  /// Of the result.
  int64_t blocks() const;
  /// Warpgroups that multiply.
  int64_t consumers() const { return is_line() ? row_chunks : 3; }
  /// Of the result that one of them computes, for 64 rows.
  int64_t columns() const;
  /// Of a block of the result, as floats.
  int64_t block_sums() const;
  /// Of the tensor cores, for one tile and one block of the result.
  int64_t unit_cycles() const;
  /// Tiles in the ring, as many as fit.
  int64_t slots(const ir::DeviceSpec& device) const;
  int64_t shared_bytes(int64_t slots) const;

  /// Blocks of the kernel, each with an equal share of the tiles of all blocks of the result: one for each processor,
  /// or as many as have enough to do; or fewer, whose shares end where blocks of the result end, if that costs less
  /// than one more tile. Which partial sums there are, and so the order of the whole sum, follows from this number.
  int64_t groups(const ir::DeviceSpec& device) const;
};

/// A stride-1 conv_wgrad in bf16 with a filter of 1 x 1 or 3 x 3 and channel counts that are multiples of 8 (a row of
/// the copy engine's is a multiple of 16 bytes), whose results can be computed in runs of four elements. Nothing for
/// what is left to the other emitters.
std::optional<HaloWgrad> halo_wgrad(const KernelSpec& spec);

}  // namespace difuse::codegen::cuda
