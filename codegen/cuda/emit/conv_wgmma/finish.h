// A convolution whose prologue repeats what a group_finish makes of an image's strips: its kernel's transformers
// make that of their images, in shared memory.
#pragma once

#include <optional>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/preamble.h"
#include "ir/graph.h"

namespace difuse::codegen::cuda {

/// The spec as the convolution's emitter sees it: with a preamble, whose results are inputs of the body, where the body
/// has one such group_finish that is few loads for each of the transformers' threads; otherwise as it is.
class FinishedSpec {
 public:
  explicit FinishedSpec(const KernelSpec& spec);
  FinishedSpec(const FinishedSpec&) = delete;
  FinishedSpec& operator=(const FinishedSpec&) = delete;

  const KernelSpec& spec() const { return made_ ? *made_ : original_; }

 private:
  const KernelSpec& original_;
  ir::Graph body_{"body"};
  Preamble preamble_;
  std::optional<KernelSpec> made_;
};

}  // namespace difuse::codegen::cuda
