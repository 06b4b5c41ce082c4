// The order of a plan's launches, and which of them are one.
//
// Nodes are lowered one after the other. Their launches keep that order, but for two things:
// - nodes that run at once (MemoryPlan::together) give their first launches, then their second ones, and equal ones are
//   joined (table.h);
// - a second stage, which reads nothing but what its node left in the workspace, waits until somebody reads its result.
//   Meanwhile others of its kind come together, and then they are one launch. Or, where it adds an image's parts, who
//   reads the sums may add them itself (part_sums.h).
//
// Launches of nodes that do not run in every step (MemoryPlan::once_end) are a list of their own: none of theirs waits
// for a node of the step.
#pragma once

#include <vector>

#include "codegen/cuda/cuda_plan.h"
#include "codegen/cuda/join/part_sums.h"
#include "codegen/cuda/join/table.h"
#include "codegen/cuda/kernel_spec.h"

namespace difuse::codegen::cuda {

class LaunchOrder {
 public:
  /// Second stages that wait hold at most `most_held` bytes of the workspace.
  LaunchOrder(CudaPlan& plan, int64_t most_held);

  /// What must be done before the node is lowered is put into the plan. A node that comes again copies a state. Gives
  /// the spec to lower, with the second stages that it has taken over.
  TakenSums begin(int node, const KernelSpec& spec);
  /// What is in use while the node is lowered.
  std::vector<WorkspaceRange> held() const;
  /// Takes the launches that the node has appended to the plan. `independent`: none of them reads what another writes.
  void end(int node, const KernelSpec& spec, bool independent, std::vector<WorkspaceRange> workspace);
  /// After the last node.
  void finish();

 private:
  struct Waiting {
    KernelCall call;
    int until;  // The node that reads what it makes.
    std::vector<WorkspaceRange> workspace;
  };
  struct Lowered {
    std::vector<KernelCall> calls;
    std::vector<Waiting> second;
    std::vector<WorkspaceRange> workspace;
  };

  int first_read(int node, const KernelSpec& spec, const KernelCall& call) const;
  TakenSums take(int node, const KernelSpec& spec);
  void begin_step();
  void run_group();
  void run_waiting(size_t first);
  void keep_within_limit();

  CudaPlan& plan_;
  Joiner joiner_;
  int64_t most_held_;
  std::vector<std::vector<int>> first_reads_;  // by node and result: the first node with launches that reads it
  std::vector<Lowered> group_;
  passes::NodeRange range_ = {-1, -1};         // of the group
  std::vector<Waiting> waiting_, taken_over_;  // by the node that is being lowered
  size_t taken_ = 0;                           // calls of the plan that are in order
  int latest_ = -1;
  bool in_step_ = false;  // What runs once has its launches.
};

}  // namespace difuse::codegen::cuda
