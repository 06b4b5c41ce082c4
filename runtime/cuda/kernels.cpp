#include "runtime/cuda/kernels.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/error.h"

namespace difuse::runtime {

LoadedKernels::LoadedKernels(const CudaDevice& device, const codegen::cuda::CudaPlan& plan,
                             std::span<const std::shared_ptr<const codegen::CompiledKernel>> kernels)
    : device_(device) {
  std::vector<int64_t> shared_bytes(kernels.size());
  for (const auto* calls : {&plan.calls, &plan.once}) {
    for (const codegen::cuda::KernelCall& call : *calls) {
      int64_t& most = shared_bytes[static_cast<size_t>(call.source)];
      most = std::max(most, call.shared_bytes);
    }
  }
  try {
    for (size_t i = 0; i < kernels.size(); ++i) load(*kernels[i], shared_bytes[i]);
  } catch (...) {
    unload();
    throw;
  }
}

LoadedKernels::~LoadedKernels() { unload(); }

void LoadedKernels::load(const codegen::CompiledKernel& kernel, int64_t shared_bytes) {
  const CudaDriver& cuda = device_.use();
  const std::string what = fmt::format("loading the kernel {}", kernel.name);
  cuda.require(cuda->cuLibraryLoadData(&libraries_.emplace_back(), kernel.cubin.data(), nullptr, nullptr, 0, nullptr,
                                       nullptr, 0),
               what);
  cuda::Kernel handle = nullptr;
  cuda.require(cuda->cuLibraryGetKernel(&handle, libraries_.back(), kernel.name.c_str()), what);
  cuda.require(cuda->cuKernelGetFunction(&functions_.emplace_back(), handle), what);
  if (shared_bytes == 0) return;
  const int64_t most = device_.spec().shared_memory_bytes - kernel.resources.static_shared_bytes;
  if (shared_bytes > most) {
    throw Error(fmt::format("the kernel {} takes {} bytes of shared memory, and a block of {} has {} left for it",
                            kernel.name, shared_bytes, device_.spec().name, most));
  }
  cuda.require(cuda->cuKernelSetAttribute(cuda::FunctionAttribute::max_dynamic_shared_size_bytes,
                                          static_cast<int>(shared_bytes), handle, device_.handle()),
               fmt::format("giving the kernel {} {} bytes of shared memory", kernel.name, shared_bytes));
}

void LoadedKernels::unload() noexcept {
  try {
    const CudaDriver& cuda = device_.use();
    for (const cuda::Library library : libraries_) {
      if (library != nullptr) cuda->cuLibraryUnload(library);
    }
  } catch (...) {  // The context is gone, and the code with it.
  }
}

}  // namespace difuse::runtime
