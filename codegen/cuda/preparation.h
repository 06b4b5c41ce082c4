// What a node launches at another batch.
#pragma once

#include <utility>

#include "codegen/cuda/kernel_spec.h"

namespace difuse::codegen::cuda {

/// Prepares the kernels that are launched through it.
class Preparation : public Emission {
 public:
  explicit Preparation(Emission& emission) : emission_(emission) {}
  Argument workspace(int64_t) override { return {Argument::Kind::workspace, 0}; }
  void launch(KernelDraft draft) override { prepare(std::move(draft)); }
  void prepare(KernelDraft draft) override { emission_.prepare(std::move(draft)); }

 private:
  Emission& emission_;
};

}  // namespace difuse::codegen::cuda
