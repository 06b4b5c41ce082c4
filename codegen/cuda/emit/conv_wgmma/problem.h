// A body's convolution as Hopper's engines compute it (device/conv_wgmma.cuh).
#pragma once

#include <optional>

#include "codegen/cuda/kernel_spec.h"
#include "ir/graph.h"

namespace difuse::codegen::cuda {

struct HaloConv {
  ir::Value value;            ///< The convolution in the body.
  int image = 0, filter = 0;  ///< Inputs of the body.
  int residual = -1;          ///< The input of the result's shape that is added, or the like; -1: none.

  int64_t batch = 0;
  int64_t image_h = 0, image_w = 0, inputs = 0;  ///< Of the image.
  int64_t height = 0, width = 0, outputs = 0;    ///< Of the result.
  int64_t taps = 1, pad = 0;                     ///< A filter of taps x taps.

  /// A filter of one tap sees all pixels of all images as one line.
  bool is_line() const { return taps == 1; }
  int64_t chunks() const { return (inputs + 63) / 64; }
};

/// A stride-1 conv_fprop in bf16 with a filter of 1 x 1 or 3 x 3 and channel counts that are multiples of 8 (a row of
/// the copy engine's is a multiple of 16 bytes), one bf16 result, and at most one further operand of an image's size.
/// Nothing for what is left to the other emitters.
std::optional<HaloConv> halo_conv(const KernelSpec& spec);

}  // namespace difuse::codegen::cuda
