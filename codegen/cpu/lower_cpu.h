// Lowers a graph for the CPU backend: one kernel for each node that computes.
//
// A fusion's body (or a single op) becomes phases of block loops and calls (kernels/unit.h, kernels/schedule.h): a
// convolution's prologue, itself and its epilogue run image by image in one thread's scratch, sums over images are
// added in index order. Bits depend on neither the thread count nor, where an image's own values are computed, on the
// batch.
#pragma once

#include "codegen/cpu/contractions.h"
#include "codegen/cpu/cpu_plan.h"

namespace difuse::codegen {

/// `memory` is the plan of this graph. Values whose places coincide (views, parts made inside their packed vector) need
/// no kernel. The plan's state copies become its last kernels. Throws Error for what the backend cannot do.
CpuPlan lower_cpu(ir::Graph graph, passes::MemoryPlan memory, const Contractions& contractions);

}  // namespace difuse::codegen
