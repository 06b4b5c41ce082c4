// A body's convolution as Hopper's engines compute it (device/conv_wgmma.cuh).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codegen/cuda/emit/prologue.h"
#include "codegen/cuda/kernel_spec.h"
#include "ir/graph.h"

namespace difuse::codegen::cuda {

struct HaloConv {
  /// A sum over an image's pixels, or over all images', of what is computed from the convolution's value.
  struct Sum {
    size_t output;
    ir::Value value;
    bool over_images;
  };

  ir::Value value;                    ///< The convolution in the body.
  ir::DType dtype = ir::DType::bf16;  ///< Of image, filter, residual and result: bf16, or f32 rounded to tf32.
  ImageOperand image;
  int filter = 0;          ///< Input of the body.
  int residual = -1;       ///< The input of the result's shape that is added, or the like; -1: none.
  int mask = -1;           ///< Another, of bytes (u8), beside it; -1: none.
  size_t result = 0;       ///< The output that is an image.
  int mean = -1, m2 = -1;  ///< The outputs that are its channel_moments; -1: none.
  std::vector<Sum> sums = {};

  int64_t batch = 0;
  int64_t image_h = 0, image_w = 0, inputs = 0;  ///< Of the image.
  int64_t height = 0, width = 0, outputs = 0;    ///< Of the result.
  int64_t taps = 1, pad = 0, stride = 1;         ///< A filter of taps x taps.
  bool is_turned = false;                        ///< A conv_dgrad: the filter lies as [inputs, taps, taps, outputs].

  /// Of the first image, where there are two.
  int64_t first_inputs = 0;

  int64_t finished = 0;         ///< Numbers of an image that the spec's preamble makes and the prologue reads.
  bool has_image_sums = false;  ///< Of what the prologue makes, over the pixels of each strip.

  bool has_finish() const { return finished > 0; }
  bool has_prologue() const { return image.has_prologue; }
  bool has_moments() const { return mean >= 0; }
  bool has_strips() const { return has_moments() || !sums.empty(); }
  /// A filter of one tap sees all pixels of all images as one line, unless they belong to strips, or a prologue has to
  /// know their image.
  bool is_line() const { return taps == 1 && !has_strips() && !has_prologue(); }
  /// Channels in 128 bytes of a pixel.
  int64_t chunk() const { return 128 / ir::size_of(dtype); }
  int64_t chunks() const { return (inputs + chunk() - 1) / chunk(); }
  /// Of 64 channels of the result, 128 bytes of a pixel each.
  int64_t parts() const { return 64 / chunk(); }
};

/// A conv_fprop or conv_dgrad of stride 1, or a conv_fprop of stride 2 and 3 x 3 without a prologue, in bf16 with a
/// filter of 1 x 1 or 3 x 3 and channel counts that are multiples of 8 (a row of the copy engine's is a multiple of 16
/// bytes), one bf16 result, perhaps its channel_moments and sums over pixels, at most one further operand of an image's
/// size, beside it perhaps one of bytes in 16 channels or a multiple, and perhaps a prologue or two images. Or a
/// conv_fprop of f32 operands that are rounded to tf32 in memory (the tensor cores would cut bits off), with multiples
/// of 4 channels, an f32 result and no prologue. Nothing for what is left to the other emitters.
std::optional<HaloConv> halo_conv(const KernelSpec& spec);

/// What is the same at every batch, in one line: "engines 64x64x128 to 64x64x64, filter 3x3, pad 1, turned".
std::string geometry(const HaloConv& conv);

}  // namespace difuse::codegen::cuda
