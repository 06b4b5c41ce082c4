// Compiles a plan's kernels: through the cache, the rest on all cores.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codegen/jit/kernel.h"
#include "codegen/jit/kernel_cache.h"
#include "codegen/jit/nvrtc.h"
#include "ir/error.h"

namespace difuse::codegen {

/// One source's outcome: a kernel or an error.
struct CompileResult {
  std::shared_ptr<const CompiledKernel> kernel;
  std::optional<Error> error;  ///< What NvrtcLibrary::compile threw. A tuner skips such a candidate.
  bool was_cached = false;
};

struct CompileProgress {
  int done = 0, total = 0;  ///< Distinct kernels; cached ones are done from the start.
  int cached = 0, failed = 0;
  std::string_view name;  ///< The kernel that ended last; empty in the first call.
};

class KernelCompiler {
 public:
  /// Called from one thread at a time, not always the caller's. What it throws stops the compilation and is passed on.
  using Progress = std::function<void(const CompileProgress&)>;

  /// `threads` 0: one per core. NVRTC is opened by the first kernel that the cache does not have.
  KernelCompiler(KernelCache& cache, NvrtcSearch search, int threads = 0);

  /// Results in the order of `sources`; equal sources are compiled once. A kernel that fails does not stop the others.
  /// Throws Error (wrong_usage) when a kernel is not in the cache and there is no NVRTC.
  std::vector<CompileResult> compile(std::span<const CudaSource> sources, const Progress& progress = {});

  /// Null while no kernel was missing from the cache.
  std::shared_ptr<const NvrtcLibrary> nvrtc() const { return nvrtc_; }

 private:
  std::optional<NvrtcVersion> version_without_opening() const;
  bool open_nvrtc(std::string& reason);

  KernelCache& cache_;
  NvrtcSearch search_;
  int threads_;
  std::shared_ptr<const NvrtcLibrary> nvrtc_;
};

/// The kernels of `results`; throws one Error that counts the kernels that failed and quotes the first of them.
std::vector<std::shared_ptr<const CompiledKernel>> require_all(std::span<const CompileResult> results);

}  // namespace difuse::codegen
