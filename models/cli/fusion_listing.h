// What `difuse compile --report` prints.
#pragma once

#include "codegen/cuda/cuda_plan.h"
#include "passes/fusion/report.h"

namespace difuse::models {

/// For each kernel of the plan the ops that it holds and the bytes that it moves instead of what kernels of single ops
/// would move; then what was not fused, each with its reason.
void print_fusions(const codegen::cuda::CudaPlan& plan, const passes::FusionReport& report);

}  // namespace difuse::models
