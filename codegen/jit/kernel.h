// What goes into the just-in-time compiler and what comes out. codegen/jit/ turns CUDA source into loadable code: NVRTC
// behind dlopen, the cache of compiled kernels, and the pool that compiles a plan's kernels on all cores. It knows
// neither what a kernel computes (that is codegen/cuda/) nor how one is launched (that is runtime/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace difuse::codegen {

/// One kernel: source that includes nothing and defines `extern "C" __global__ void <name>(...)`, and nothing else that
/// can be launched.
struct CudaSource {
  std::string name;                  ///< The entry's name, an identifier.
  std::string source;                ///< CUDA C++20. Functions without an annotation are __device__.
  std::string architecture;          ///< "sm_80", "sm_90a", ...: what ir::architecture_name gives.
  std::vector<std::string> options;  ///< NVRTC options beyond the fixed ones, e.g. "--maxrregcount=168".
};

/// What the assembler reports of one kernel.
struct KernelResources {
  int registers = 0;                ///< A thread's, at entry.
  int barriers = 0;                 ///< Named barriers of a block.
  int64_t static_shared_bytes = 0;  ///< Shared memory of a block besides what is asked for at launch.
  int64_t local_bytes = 0;          ///< A thread's stack frame; 0 in every kernel that was not refused.
  int64_t constant_bytes = 0;       ///< Constant bank 0 (arguments included), where the assembler says it.

  bool operator==(const KernelResources&) const = default;
};

struct CompiledKernel {
  std::string name;
  std::string architecture;
  std::vector<std::byte> cubin;
  KernelResources resources;
  std::string log;     ///< All that the compiler said.
  double seconds = 0;  ///< What compiling took, when it was compiled.
};

}  // namespace difuse::codegen
