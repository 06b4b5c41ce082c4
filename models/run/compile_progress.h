// How far the compilation of CUDA kernels is.
#pragma once

#include <chrono>

#include "codegen/jit/compiler.h"

namespace difuse::models {

/// Says nothing while all kernels come from the cache. A line that is rewritten on a terminal; one line when it took
/// more than a moment elsewhere.
class CompileProgress {
 public:
  CompileProgress();
  void show(const codegen::CompileProgress& now);

 private:
  const bool terminal_;
  const std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace difuse::models
