// Brings equal nodes together, so that their launches are one each (order.h).
//
// Before: a fused graph in the order of its execution. After: the same nodes, some of them elsewhere, and ranges of
// nodes that run at once: none reads another's result, and all have the same kernels. A node may move to wherever its
// operands are made and nobody has read its results yet. It is put off until somebody needs it; then those of its kind
// whose operands are there come with it, whether they were put off as well or stand further down. That meets the
// fewest times that any such order can, kind by kind.
//
// What moves keeps bytes alive, its operands or its results, so only small nodes move, and no more than the arena then
// grows by a few per cent.
//
// Filter gradients on Hopper gain more (Emitter::shares_processors): one after the other each is divided among all
// processors, which leave as many partial sums; at once each has its share of them, and fewer partial sums. Those are
// put off however large, as long as the arena has room that nothing lies in anyway while they wait, which it has once
// the backward pass has left the peak. Their number is then part of the order of their sums (KernelSpec::members).
// Otherwise no bit changes: every node has the kernels that it would have alone.
#pragma once

#include "codegen/tune/table.h"
#include "ir/device_spec.h"
#include "ir/graph.h"
#include "passes/memory_plan.h"

namespace difuse::codegen::cuda {

struct JoinedNodes {
  ir::Graph graph;
  passes::MemoryPlan memory;  ///< With the ranges (MemoryPlan::together).
};

/// `decisions`: as lower_cuda takes them; `once`: passes::MemoryOptions::once. Throws Error as lower_cuda does.
JoinedNodes join_equal_nodes(ir::Graph graph, const ir::DeviceSpec& device, const TuningTable* decisions = nullptr,
                             bool once = true);

}  // namespace difuse::codegen::cuda
