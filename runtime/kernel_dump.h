// The kernels of a plan as files to read: `<kernel name>.cu`, and what it became, `<kernel name>.cubin`.
#pragma once

#include <filesystem>
#include <memory>
#include <span>

#include "codegen/cuda/cuda_plan.h"
#include "codegen/jit/kernel.h"

namespace difuse::runtime {

/// Writes every source of the plan into `folder`, which is made where it is missing, in place of the kernels that an
/// earlier call left there. Throws Error naming what cannot be
/// written.
void dump_sources(const std::filesystem::path& folder, const codegen::cuda::CudaPlan& plan);

/// The code of compiled kernels beside their sources.
void dump_code(const std::filesystem::path& folder,
               std::span<const std::shared_ptr<const codegen::CompiledKernel>> kernels);

}  // namespace difuse::runtime
