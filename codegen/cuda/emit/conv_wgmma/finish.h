// A convolution whose prologue repeats what is finished of an image's partial results (emit/finished.h): its kernel's
// transformers make that of their images, in shared memory. And one that sums what the prologue makes.
#pragma once

#include <optional>

#include "codegen/cuda/emit/conv_wgmma/problem.h"
#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/preamble.h"
#include "ir/graph.h"

namespace difuse::codegen::cuda {

/// The spec as the convolution's emitter sees it: with a preamble, whose results are inputs of the body, where what the
/// body finishes is few loads for each of the transformers' threads; and without the sums of the image.
class FinishedSpec {
 public:
  explicit FinishedSpec(const KernelSpec& spec);
  FinishedSpec(const FinishedSpec&) = delete;
  FinishedSpec& operator=(const FinishedSpec&) = delete;

  const KernelSpec& spec() const { return made_ ? *made_ : original_; }
  /// Nothing where Hopper's engines do not compute it.
  std::optional<HaloConv> conv() const;
  /// Where the sums over the pixels of the convolution's image go; nothing where nobody wants them.
  const std::optional<Argument>& image_sum() const { return image_sum_; }

 private:
  bool can_finish(const class FinishedParts& parts) const;

  const KernelSpec& original_;
  ir::Graph body_{"body"};
  Preamble preamble_;
  std::optional<KernelSpec> made_;
  std::optional<Argument> image_sum_;
};

}  // namespace difuse::codegen::cuda
