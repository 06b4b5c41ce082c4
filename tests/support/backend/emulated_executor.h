// Runs a plan of CUDA kernels on the CPU, through the emulator: what CudaExecutor computes, without a GPU.
#pragma once

#include <memory>
#include <vector>

#include "codegen/cuda/cuda_plan.h"
#include "ir/device_spec.h"
#include "runtime/executor.h"

namespace difuse::testing {

class EmulatedExecutor final : public runtime::Executor {
 public:
  explicit EmulatedExecutor(codegen::cuda::CudaPlan plan);

  const codegen::cuda::CudaPlan& plan() const { return *plan_; }

  void run() override;
  void wait() const override {}
  std::vector<double> time_steps(int) override { return {}; }
  void enable_profile(bool) override {}
  std::vector<runtime::KernelProfile> profile() const override { return {}; }
  runtime::OnceKernels once_kernels() const override { return {std::ssize(plan_->once), 0}; }
  void run_observed(runtime::NodeObserver&) override {}

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte[], Free>;
  static Memory allocate(int64_t bytes);

  explicit EmulatedExecutor(std::unique_ptr<codegen::cuda::CudaPlan> plan);
  void upload(int64_t offset, std::span<const std::byte> bytes, int slot) override;
  void download(int64_t offset, std::span<std::byte> bytes) const override;
  std::unique_ptr<runtime::Fetch> start_fetch(int64_t, int64_t) const override { return nullptr; }

  std::unique_ptr<codegen::cuda::CudaPlan> plan_;
  Memory arena_, workspace_;
};

/// The graph as it is, without passes, for the H100 unless another device is given.
std::unique_ptr<EmulatedExecutor> lower_emulated(const ir::Graph& graph, bool reuse_memory = true,
                                                 const ir::DeviceSpec* device = nullptr);

}  // namespace difuse::testing
