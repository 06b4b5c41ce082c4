// Compiled kernels, loaded on a GPU.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/cuda/cuda_plan.h"
#include "codegen/jit/kernel.h"
#include "runtime/cuda/device.h"

namespace difuse::runtime {

class LoadedKernels {
 public:
  /// The kernel of each source of the plan, in order. Throws Error naming the kernel that the driver does not take
  /// (wrong usage where it was made for another GPU or by a CUDA newer than the driver's).
  LoadedKernels(const CudaDevice& device, const codegen::cuda::CudaPlan& plan,
                std::span<const std::shared_ptr<const codegen::CompiledKernel>> kernels);
  ~LoadedKernels();
  LoadedKernels(const LoadedKernels&) = delete;
  LoadedKernels& operator=(const LoadedKernels&) = delete;

  cuda::Function function(int source) const { return functions_[static_cast<size_t>(source)]; }

 private:
  void load(const codegen::CompiledKernel& kernel, int64_t shared_bytes);
  void unload() noexcept;

  const CudaDevice& device_;
  std::vector<cuda::Library> libraries_;
  std::vector<cuda::Function> functions_;
};

}  // namespace difuse::runtime
