// A contraction's kernels as CUDA source.
#pragma once

#include "codegen/cuda/emit/contraction/problem.h"
#include "codegen/cuda/emit/contraction/sum.h"
#include "codegen/cuda/emit/contraction/tiles.h"
#include "codegen/cuda/kernel_spec.h"

namespace difuse::codegen::cuda {

/// The product and, unless the problem is split, everything after it. A split problem's spec has the contraction alone
/// as its body, and its result is the first of `splits` partial results, one behind the other.
KernelDraft product_kernel(const KernelSpec& spec, const GemmProblem& problem, const GemmTile& tile);

/// What the product of a split problem leaves to be added.
PartialSums partial_sums(const KernelSpec& spec, const GemmProblem& problem);

}  // namespace difuse::codegen::cuda
