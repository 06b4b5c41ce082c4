// What is stored of the products of Hopper's warpgroups: runs of columns of 64 rows that their threads hold.
#pragma once

#include <string>

#include "codegen/cuda/emit/attention/tiles.h"
#include "codegen/cuda/source/parameters.h"

namespace difuse::codegen::cuda {

inline constexpr int kRunLanes = 4;  ///< Of what a thread stores at once.

/// The value of `block`, and the rows' log-sum-exp.
std::string store_value_runs(const KernelSpec& spec, const AttentionProblem& p, Parameters& parameters);

/// dK, dV and dQ of `block`; which of them a kernel has is its own matter.
struct GradientStores {
  std::string keys, values, queries;
};
GradientStores store_gradient_runs(const KernelSpec& spec, const AttentionProblem& p, Parameters& parameters);

}  // namespace difuse::codegen::cuda
