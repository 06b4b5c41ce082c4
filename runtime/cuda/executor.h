// Runs a plan of CUDA kernels: the first step kernel by kernel, each checked; then as one CUDA graph.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codegen/cuda/cuda_plan.h"
#include "codegen/jit/kernel.h"
#include "runtime/cuda/device.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/launches.h"
#include "runtime/cuda/owners.h"
#include "runtime/cuda/transfer.h"
#include "runtime/executor.h"

namespace difuse::runtime {

struct CudaExecutorOptions {
  bool graphs = true;  ///< Capture the second step and replay it from then on; false: launch kernel by kernel.
  /// Wait after every kernel of every step, but profiled ones, and name the one that fails; such steps are no graphs.
  bool check = false;
};

/// Whether a step is replayed or launched kernel by kernel changes no bit.
class CudaExecutor final : public Executor {
 public:
  /// Allocates the arena and the workspace, zero-filled; fills constants and literals. `kernels` are those of
  /// plan.sources.
  CudaExecutor(std::shared_ptr<const CudaDevice> device, codegen::cuda::CudaPlan plan,
               std::span<const std::shared_ptr<const codegen::CompiledKernel>> kernels,
               const CudaExecutorOptions& options = {});
  ~CudaExecutor() override;

  const codegen::cuda::CudaPlan& plan() const { return *plan_; }
  const CudaDevice& device() const { return *device_; }
  int64_t held_bytes() const override { return arena_bytes() + plan_->workspace_bytes; }

  void run() override;
  void wait() const override;
  std::vector<double> time_steps(int count) override;
  void enable_profile(bool enabled) override { profiling_ = enabled; }
  std::vector<KernelProfile> profile() const override;
  OnceKernels once_kernels() const override;
  void run_observed(NodeObserver& observer) override;

 private:
  CudaExecutor(std::shared_ptr<const CudaDevice> device, std::unique_ptr<codegen::cuda::CudaPlan> plan,
               std::span<const std::shared_ptr<const codegen::CompiledKernel>> kernels,
               const CudaExecutorOptions& options);
  std::string step_text() const;

  void launch_all(Launches& launches);
  /// One at a time, waiting for each: an Error names the kernel.
  void launch_checked(Launches& launches);
  void run_once();
  void run_profiled();
  void capture_profile();
  void collect_profile();

  void upload(int64_t offset, std::span<const std::byte> bytes, int slot) override;
  void download(int64_t offset, std::span<std::byte> bytes) const override;
  std::unique_ptr<Fetch> start_fetch(int64_t offset, int64_t bytes) const override;

  std::shared_ptr<const CudaDevice> device_;  // First: what follows lives on it.
  std::unique_ptr<codegen::cuda::CudaPlan> plan_;
  CudaExecutorOptions options_;
  LoadedKernels kernels_;
  DeviceMemory arena_, workspace_;
  UploadRing uploads_;
  std::shared_ptr<FetchPool> fetches_;
  Launches launches_, taken_over_, once_;  // The step's, what it has no launch for, and what not every step runs.
  bool has_run_ = false;
  std::unique_ptr<CudaGraph> graph_;

  bool profiling_ = false;
  std::deque<Event> marks_;                   // Before each kernel, and after the last.
  std::unique_ptr<CudaGraph> profile_graph_;  // The step with its marks.
  std::vector<std::vector<double>> seconds_;  // by kernel, by step
};

}  // namespace difuse::runtime
