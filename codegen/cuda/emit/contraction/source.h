// A contraction's kernels as CUDA source.
#pragma once

#include "codegen/cuda/emit/contraction/problem.h"
#include "codegen/cuda/emit/contraction/tiles.h"
#include "codegen/cuda/kernel_spec.h"

namespace difuse::codegen::cuda {

/// The product and, unless the problem is split, everything after it. A split problem's spec has the contraction alone
/// as its body, and its result is the first of `splits` partial results, one behind the other.
KernelDraft product_kernel(const KernelSpec& spec, const GemmProblem& problem, const GemmTile& tile);

/// Adds the partial results, which are input `partials` of the spec's body, and does everything after that.
KernelDraft sum_kernel(const KernelSpec& spec, const GemmProblem& problem, int partials);

}  // namespace difuse::codegen::cuda
