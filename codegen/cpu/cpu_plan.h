// codegen/ says how a fused graph becomes kernels: for the CPU in cpu/, as CUDA source elsewhere. What must not live
// here: what a graph means (ir/), how it is rewritten (passes/), devices, files of the user's and the step loop
// (runtime/).
//
// This file: a graph lowered for the CPU: one kernel per node that computes, run in order over one arena.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "passes/memory_plan.h"

namespace difuse::codegen {

class ThreadTeam;

/// What a kernel call gets: the threads, the arena, what the threads of one kernel share while it runs, and one scratch
/// block per thread.
struct CpuContext {
  ThreadTeam& team;
  std::byte* arena;
  std::byte* workspace;                 ///< CpuPlan::workspace_bytes long, 64-byte aligned; nothing lasts in it.
  std::span<std::byte* const> scratch;  ///< One per thread, each CpuPlan::scratch_bytes long, 64-byte aligned.
};

class CpuKernel {
 public:
  virtual ~CpuKernel() = default;
  virtual void run(const CpuContext& context) const = 0;

  std::string name;            ///< Says what it computes: "conv_fprop_3x3_h28w28c32k32".
  int node = -1;               ///< The graph node it runs.
  std::string implementation;  ///< oneDNN's impl_info of its contraction, "plain" without oneDNN, empty for others.
  int64_t bytes = 0;           ///< Operands read and results written once.
  int64_t flops = 0;           ///< Multiply and add of its contraction.
};

struct CpuPlan {
  ir::Graph graph;
  passes::MemoryPlan memory;
  std::vector<std::unique_ptr<CpuKernel>> kernels;
  std::vector<std::unique_ptr<CpuKernel>> once = {};  ///< Run before them, as passes::MemoryPlan::once_end says.
  int64_t scratch_bytes = 0;                          ///< Per thread.
  int64_t workspace_bytes = 0;                        ///< For whichever kernel runs.
};

}  // namespace difuse::codegen
