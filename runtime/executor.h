// runtime/ says how a compiled plan runs and how bytes come in and go out: devices, executors, images, checkpoint
// files. What must not live here: models and training (models/), kernels (codegen/).
//
// This file: what runs a lowered graph step after step, whatever the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "passes/memory_plan.h"

namespace difuse::runtime {

/// One kernel's share of all profiled steps.
struct KernelProfile {
  std::string name, implementation;
  int node = -1;  ///< Of the executor's graph.
  int64_t calls = 0;
  double seconds = 0;            ///< Of all calls.
  double median = 0;             ///< Of one call.
  int64_t bytes = 0, flops = 0;  ///< Of one call.
};

/// Kernels that do not run in every step, all together.
struct OnceKernels {
  int64_t launches = 0;
  int64_t bytes = 0;  ///< Read and written.
};

/// Looks into a step while it runs (Executor::run_observed). A node's kernels run together.
class NodeObserver {
 public:
  virtual ~NodeObserver() = default;
  virtual void before(int node) = 0;
  virtual void after(int node) = 0;
};

/// Bytes on their way from the device (Executor::fetch).
class Fetch {
 public:
  virtual ~Fetch() = default;
  /// Waits until they are here.
  virtual std::span<const std::byte> bytes() = 0;
};

/// Owns the arena. A step reads the inputs and the states, makes the outputs and puts the next states in place of the
/// old. Calls of one Executor must not overlap.
class Executor {
 public:
  virtual ~Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// Bytes as the graph's type says: row-major, little-endian. Each throws Error naming the tensor when there is none
  /// of that name or `bytes` has another size. Reading waits for the steps before; writing an input does not.
  void write_input(std::string_view name, std::span<const std::byte> bytes);
  void read_output(std::string_view name, std::span<std::byte> bytes) const;
  void write_state(std::string_view name, std::span<const std::byte> bytes);
  void read_state(std::string_view name, std::span<std::byte> bytes) const;
  /// An output as it is after the steps so far, copied without waiting for them.
  std::unique_ptr<Fetch> fetch_output(std::string_view name) const;

  /// One step, which may go on after the call returns: before it, where a state that they read has been written since
  /// they ran, the kernels whose results are the same in every step (passes/hoist.h) or are carried from one to the
  /// next (passes/carry.h). What a device finds wrong is thrown by this or a later call. Allocates nothing of its own
  /// but in the first steps. Throws Error when a kernel finds bad data (a gather's index out of range); outputs and
  /// states are then in between two steps.
  virtual void run() = 0;
  /// Waits for the steps so far.
  virtual void wait() const = 0;
  /// Runs so many steps, one right after the other, and gives the seconds that each took on the device.
  virtual std::vector<double> time_steps(int count) = 0;

  const ir::Graph& graph() const { return graph_; }
  const passes::MemoryPlan& memory() const { return memory_; }
  int64_t arena_bytes() const { return memory_.arena_bytes; }
  /// All that it holds where it computes: the arena, states included, and a workspace where kernels need one.
  virtual int64_t held_bytes() const { return arena_bytes(); }

  /// Times every kernel from the next step on; on a GPU the very first step is not timed.
  virtual void enable_profile(bool enabled) = 0;
  /// In the order in which the kernels run; zeros before a profiled step.
  virtual std::vector<KernelProfile> profile() const = 0;

  /// What runs before the first step, and before the next one after a state was written that it reads.
  virtual OnceKernels once_kernels() const = 0;

  /// One step, node by node, with what runs once. Nodes that need no kernel are passed over; what copies a state is
  /// seen as its node again.
  virtual void run_observed(NodeObserver& observer) = 0;
  /// What lies at a value's place now; false, and nothing is read, where it has none.
  bool read_value(ir::Value v, std::span<std::byte> bytes) const;

 protected:
  /// The graph and plan belong to the derived class and must last as long as it.
  Executor(const ir::Graph& graph, const passes::MemoryPlan& memory);

  /// Whether kernels that run once must run before the next step. They have run where one sets it to false.
  bool once_is_due() const { return once_is_due_; }
  void set_once_is_due(bool due) { once_is_due_ = due; }

  /// Between host memory and the arena. `upload` may return before the bytes are there, but not before `bytes` may
  /// change; `slot` tells uploads apart that come once a step, and is -1 for others.
  virtual void upload(int64_t offset, std::span<const std::byte> bytes, int slot) = 0;
  virtual void download(int64_t offset, std::span<std::byte> bytes) const = 0;
  virtual std::unique_ptr<Fetch> start_fetch(int64_t offset, int64_t bytes) const = 0;

  /// Writes what is the same in every step: constants and literals.
  void fill_leaves();

 private:
  const passes::Placement& leaf(ir::Op kind, std::string_view name, size_t bytes) const;
  const passes::Placement& output(std::string_view name, std::optional<size_t> bytes) const;

  const ir::Graph& graph_;
  const passes::MemoryPlan& memory_;
  std::vector<bool> read_once_;  // by node: a state that kernels read that run once
  bool once_is_due_ = true;
};

/// The median of `numbers`; 0 where there are none.
double median(std::vector<double> numbers);

}  // namespace difuse::runtime
