// What is done with an image before a convolution multiplies it: elementwise ops of it and of operands that are the
// same for all pixels of an image (a normalise's statistics and parameters). The convolution's kernel does it in shared
// memory, on runs of eight channels of a pixel; what depends on the image and the channels alone is computed once for
// many pixels.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "codegen/cuda/kernel_spec.h"
#include "ir/graph.h"

namespace difuse::codegen::cuda {

/// What a contraction multiplies: an image, or the channels of two.
struct ImageOperand {
  ir::Value value;          ///< The image in the body: an input, or a concat.
  std::vector<int> inputs;  ///< One or two inputs of the body.
  bool has_prologue = false;
  int other = -1;  ///< The input that is another image, which the prologue reads where it lies; -1: none.
};

/// What the operand of `contraction` is computed from: an image [n, h, w, c] like it, in bf16 where there is a
/// prologue, which only the prologue reads, as only the contraction reads what the prologue makes of it; of such images
/// there may be two. All else are elementwise ops, and broadcasts along the pixels of what is computed of small
/// operands. An image is an input or, where it is the only one, two, one behind the other in each pixel, the first a
/// multiple of 64 channels. Nothing for any other operand.
std::optional<ImageOperand> image_operand(const ir::Graph& body, ir::Value contraction, ir::Value operand);

/// Inputs that only the prologue `operand` reads.
std::vector<int> prologue_inputs(const ir::Graph& body, ir::Value operand);

/// Two lambdas and the type that the first returns and the second takes: `channels_at(at_image, channel, made)`
/// computes what eight channels of an image have in common, as `Channels`; `declarations` are its first statements,
/// which may use the pointer `made`; `transformed(of, raw)` makes of a pixel's `Run<float, 8>` what the prologue makes
/// of it, as another that has yet to be rounded to bf16; where there is another image, of `raw` and of `others` there.
/// And `other`, which says where that lies (device/prologue.cuh). All names end with `suffix`.
std::string prologue_code(const KernelSpec& spec, const ImageOperand& image, ir::Value operand,
                          const std::vector<std::string>& pointers, const std::string& declarations = "",
                          const std::string& suffix = "");

}  // namespace difuse::codegen::cuda
