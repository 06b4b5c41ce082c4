// The gradient of a filter as Hopper's engines compute it (device/wgrad_wgmma.cuh).
#pragma once

#include <optional>
#include <string>

#include "codegen/cuda/emit/prologue.h"
#include "codegen/cuda/kernel_spec.h"
#include "ir/graph.h"

namespace difuse::codegen::cuda {

struct HaloWgrad {
  ir::Value value;                    ///< The gradient in the body.
  ir::DType dtype = ir::DType::bf16;  ///< Of x and dy: bf16, or f32 rounded to tf32.
  ImageOperand image;                 ///< x.
  ImageOperand gradient;              ///< dy, of one input, which is as high and wide as the convolution's result.

  int64_t batch = 0;
  int64_t image_h = 0, image_w = 0, inputs = 0;
  int64_t height = 0, width = 0, outputs = 0;
  int64_t taps = 1, pad = 0, stride = 1;  ///< A filter of taps x taps.

  /// Of the first image, where x are two.
  int64_t first_inputs = 0;

  // Tiles of pixels by shape alone, as in device/wgrad_wgmma.cuh: 8 wide, `rows` high, in each of `images` images, or
  // of as many times `abreast` side by side. They are the order in which pixels are summed.
  int64_t rows = 8, images = 1, abreast = 1;

  /// Small images: the sum over the pixels of a usual batch takes no longer than writing partial sums and adding them.
  /// Then a block of the kernel sums all pixels of a block of the result, or one of splits() parts of them. Otherwise
  /// the tiles of all blocks of the result are dealt out in one row (groups).
  bool is_whole = false;

  /// Blocks of the kernel that share a group, 1 or 2: by shape alone, for it is part of the order of the sum. Two halve
  /// the bytes of the partial sums.
  int64_t cluster = 1;

  /// Equal problems that run at once, each on its share of the processors.
  int64_t members = 1;

  bool is_float() const { return dtype == ir::DType::f32; }
  bool has_prologue() const { return image.has_prologue || gradient.has_prologue; }
  /// A filter of one tap sees all pixels of all images as one line.
  bool is_line() const { return taps == 1; }
  bool is_float_line() const { return is_line() && is_float(); }
  int64_t pixels() const { return 8 * rows * images; }
  /// Whether the pixels that a tap meets are one piece of shared memory.
  bool is_dense() const { return abreast > 1 || stride > 1; }
  /// Of all images.
  int64_t tiles() const;
  /// Parts of a block's tiles, where is_whole: one for each 2048 pixels. Of the batch and the shape alone, for with the
  /// tiles they are the order of the sum.
  int64_t splits() const;
};

/// A conv_wgrad in bf16 with a filter of 1 x 1 or 3 x 3 and channel counts that are multiples of 8 (a row of the copy
/// engine's is a multiple of 16 bytes), whose results can be computed in runs of four elements; x perhaps of two
/// images, x and dy perhaps with prologues, which finish no statistics, but where x is there several times: of images
/// abreast, or with a stride of 2 (and 3 x 3). Or one of f32 operands that are rounded to tf32 in memory, with
/// multiples of 4 channels and no prologue. Nothing for what is left to the other emitters.
std::optional<HaloWgrad> halo_wgrad(const KernelSpec& spec);

/// What is the same at every batch, in one line: "engines 64x64x128 by 64x64x64, filter 3x3, pad 1, whole".
std::string geometry(const HaloWgrad& wgrad);

}  // namespace difuse::codegen::cuda
