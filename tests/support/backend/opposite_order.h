// A plan whose launches that may run at once (codegen/cuda/join/overlap.h) come in the opposite order.
#pragma once

#include <algorithm>

#include "codegen/cuda/join/overlap.h"

namespace difuse::testing {

inline codegen::cuda::CudaPlan opposite_order(codegen::cuda::CudaPlan plan) {
  const auto waits = [](const codegen::cuda::KernelCall& call) { return !codegen::cuda::overlaps(call); };
  for (auto first = plan.calls.begin(); first != plan.calls.end();) {
    const auto next = std::find_if(first + 1, plan.calls.end(), waits);
    std::reverse(first, next);
    first = next;
  }
  return plan;
}

}  // namespace difuse::testing
