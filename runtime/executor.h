// runtime/ says how a compiled plan runs and how bytes come in and go out: executor, images, checkpoint files. What
// must not live here: models and training (models/), kernels (codegen/).
//
// This file: runs a lowered graph step after step on the CPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/cpu/cpu_plan.h"
#include "codegen/cpu/thread_team.h"

namespace difuse::runtime {

/// One kernel's share of all profiled steps.
struct KernelProfile {
  std::string name, implementation;
  int64_t calls = 0;
  double seconds = 0;
  int64_t bytes = 0, flops = 0;  ///< Of one call.
};

/// Owns the arena. A step reads the inputs and the states, makes the outputs and puts the next states in place of the
/// old. Calls of one Executor must not overlap.
class Executor {
 public:
  /// Allocates the arena, zero-filled, and scratch for `threads` threads; fills constants and literals. Throws Error
  /// (wrong usage) unless threads >= 1.
  Executor(codegen::CpuPlan plan, int threads);

  /// Bytes as the graph's type says: row-major, little-endian. Each throws Error naming the tensor when there is none
  /// of that name or `bytes` has another size.
  void write_input(std::string_view name, std::span<const std::byte> bytes);
  void read_output(std::string_view name, std::span<std::byte> bytes) const;
  void write_state(std::string_view name, std::span<const std::byte> bytes);
  void read_state(std::string_view name, std::span<std::byte> bytes) const;

  /// One step. Allocates nothing of its own. Throws Error when a kernel finds bad data (a gather's index out of range);
  /// outputs and states are then in between two steps.
  void run();

  const ir::Graph& graph() const { return plan_.graph; }
  const codegen::CpuPlan& plan() const { return plan_; }
  int threads() const { return static_cast<int>(scratch_.size()); }
  int64_t arena_bytes() const { return plan_.memory.arena_bytes; }

  /// Times every kernel from the next step on.
  void enable_profile(bool enabled) { profiling_ = enabled; }
  /// In the order in which the kernels run; zeros before a profiled step.
  std::vector<KernelProfile> profile() const;

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  using Memory = std::unique_ptr<std::byte[], Free>;
  static Memory allocate(int64_t bytes);

  std::span<std::byte> find(ir::Op kind, std::string_view name) const;
  std::span<std::byte> bytes_of(ir::Value v) const;
  void fill_leaves();

  codegen::CpuPlan plan_;
  Memory arena_, workspace_;
  std::vector<Memory> scratch_memory_;
  std::vector<std::byte*> scratch_;
  std::unique_ptr<codegen::ThreadTeam> team_;
  bool profiling_ = false;
  std::vector<double> seconds_;  // by kernel
  int64_t profiled_steps_ = 0;
};

}  // namespace difuse::runtime
