// What every block of a kernel computes before its loop, of the one image that the block is in: values that are
// finished of a few partial results, for a kernel that repeats them over the image.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "codegen/cuda/cuda_plan.h"

namespace difuse::codegen::cuda {

struct Preamble {
  struct Parameter {
    std::string name, type;
    Argument argument;
  };
  /// Statements, called by all threads of a block: `$image` stands for the image's number, `$threads` for how many
  /// threads there are, `$first` for whether the block is the image's first, which stores what others read too.
  std::string text;
  std::vector<std::string_view> headers;  ///< That they need.
  std::vector<Parameter> parameters;      ///< That they read, besides the kernel's own.
  /// The kernel's operands from this one on are what the statements make; they declare its pointer.
  size_t first_operand = 0;
  int64_t bytes = 0;  ///< Read and written, of the whole batch once.
  // Of a kernel that keeps what is made of each of several images, as `floats` numbers from a pointer `made` on:
  int64_t floats = 0;
  std::string declarations;  ///< The operands' pointers, of image number `at_image`.
};

}  // namespace difuse::codegen::cuda
