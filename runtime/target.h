// What a graph is compiled for and runs on.
#pragma once

#include <memory>
#include <string>

#include "codegen/jit/kernel_cache.h"
#include "ir/device_spec.h"
#include "runtime/cuda/device.h"

namespace difuse::runtime {

struct Target {
  /// The CPU with so many threads.
  Target(int cpu_threads) : threads(cpu_threads) {}  // NOLINT(google-explicit-constructor)
  /// A GPU. `kernels` keeps what is compiled for it beyond one graph; one that is made for each graph otherwise.
  Target(std::shared_ptr<const CudaDevice> gpu,  // NOLINT(google-explicit-constructor)
         std::shared_ptr<codegen::KernelCache> kernels = nullptr)
      : cuda(std::move(gpu)), cache(std::move(kernels)) {}

  bool is_cuda() const { return cuda != nullptr; }
  ir::DeviceSpec spec() const;

  int threads = 0;  ///< Of the CPU that computes.
  std::shared_ptr<const CudaDevice> cuda;
  std::shared_ptr<codegen::KernelCache> cache;
};

}  // namespace difuse::runtime
