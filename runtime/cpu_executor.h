// Runs a graph lowered for the CPU. Every call has done its work when it returns.
#pragma once

#include "codegen/cpu/cpu_plan.h"
#include "codegen/cpu/thread_team.h"
#include "runtime/executor.h"

namespace difuse::runtime {

class CpuExecutor final : public Executor {
 public:
  /// Allocates the arena, zero-filled, and scratch for `threads` threads; fills constants and literals. Throws Error
  /// (wrong usage) unless threads >= 1.
  CpuExecutor(codegen::CpuPlan plan, int threads);

  const codegen::CpuPlan& plan() const { return *plan_; }

  void run() override;
  void wait() const override {}
  std::vector<double> time_steps(int count) override;
  void enable_profile(bool enabled) override { profiling_ = enabled; }
  std::vector<KernelProfile> profile() const override;
  OnceKernels once_kernels() const override;
  void run_observed(NodeObserver& observer) override;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte[], Free>;
  static Memory allocate(int64_t bytes);

  explicit CpuExecutor(std::unique_ptr<codegen::CpuPlan> plan, int threads);
  void upload(int64_t offset, std::span<const std::byte> bytes, int slot) override;
  void download(int64_t offset, std::span<std::byte> bytes) const override;
  std::unique_ptr<Fetch> start_fetch(int64_t offset, int64_t bytes) const override;
  codegen::CpuContext context() { return {*team_, arena_.get(), workspace_.get(), scratch_}; }

  std::unique_ptr<codegen::CpuPlan> plan_;  // What Executor refers to must stay where it is.
  Memory arena_, workspace_;
  std::vector<Memory> scratch_memory_;
  std::vector<std::byte*> scratch_;
  std::unique_ptr<codegen::ThreadTeam> team_;
  bool profiling_ = false;
  std::vector<std::vector<double>> seconds_;  // by kernel, by step
};

}  // namespace difuse::runtime
