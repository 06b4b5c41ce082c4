// The kernel that all gradients of attention begin with which do not hold a head's rows at once.
#pragma once

#include "codegen/cuda/emit/attention/tiles.h"

namespace difuse::codegen::cuda {

/// delta[N, heads, L], f32: each row's sum of dout * out.
KernelDraft delta_kernel(const KernelSpec& spec, const AttentionProblem& p, const Argument& delta);

}  // namespace difuse::codegen::cuda
