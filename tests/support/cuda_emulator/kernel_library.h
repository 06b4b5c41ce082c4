// Turns CUDA source into functions of this process: wraps it into a C++ source, compiles that with the compiler that
// the tests were built with, and loads it. What was compiled once is kept in the build tree, by content.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "codegen/jit/kernel.h"
#include "tests/support/cuda_emulator/device/machine.cuh"

namespace difuse::testing {

struct KernelLibrary {
  std::string name;
  bool finds_races = false;
  unsigned most_threads = 1024;  ///< Of a block, by its __launch_bounds__.
  unsigned cluster = 1;          ///< Blocks, by its __cluster_dims__.
  emulator::Exports code{};
  std::mutex running;  ///< The code's variables hold the state of one launch.
};

/// The C++ source.
std::string translate(const codegen::CudaSource& source, bool find_races);

/// Compiles those that are new on all cores, each once. Throws Error with the compiler's lines.
std::vector<std::shared_ptr<KernelLibrary>> load_kernels(std::span<const codegen::CudaSource> sources, bool find_races);

}  // namespace difuse::testing
