// A stand-in for NVIDIA's driver (fake_driver.cpp): a shared library with the driver's functions, whose "GPU" is the
// host's memory and whose kernels are host functions. With it, all that runtime/cuda does around kernels runs without a
// GPU: memory, order, asynchronous copies, capture and replay, errors.
//
// What is put on a stream waits until somebody waits for it, so that a buffer that is used again too early gives wrong
// numbers. The environment says what the driver is: FAKE_CUDA_VERSION (13000), FAKE_CUDA_DEVICES (1; 0 where
// CUDA_VISIBLE_DEVICES is set and empty), FAKE_CUDA_ARCHITECTURE (90).
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "codegen/jit/kernel.h"

namespace difuse::test {

/// What a fake kernel gets: its arguments, 8 bytes each, and how many blocks it has. Not 0: it fails, and the GPU with
/// it.
using FakeKernel = int (*)(const uint64_t* arguments, unsigned blocks);

struct FakeCubin {
  char magic[8] = {'F', 'A', 'K', 'E', 'C', 'U', 'D', 'A'};
  FakeKernel kernel = nullptr;
  uint64_t arguments = 0;
  bool is_table = false;  ///< They are one parameter.
};

inline std::shared_ptr<const codegen::CompiledKernel> fake_kernel(const std::string& name, FakeKernel kernel,
                                                                  uint64_t arguments, bool is_table = false) {
  const FakeCubin cubin{.kernel = kernel, .arguments = arguments, .is_table = is_table};
  codegen::CompiledKernel compiled;
  compiled.name = name;
  compiled.architecture = "sm_90a";
  compiled.cubin.resize(sizeof(cubin));
  std::memcpy(compiled.cubin.data(), &cubin, sizeof(cubin));
  return std::make_shared<const codegen::CompiledKernel>(std::move(compiled));
}

}  // namespace difuse::test
