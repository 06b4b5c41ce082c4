// From a fused graph to a plan of CUDA kernels; needs no GPU.
#pragma once

#include <functional>

#include "codegen/cuda/cuda_plan.h"
#include "codegen/cuda/kernel_spec.h"
#include "codegen/tune/table.h"
#include "ir/device_spec.h"

namespace difuse::codegen::cuda {

/// Tiles are those of `decisions`, where it knows the problem, and the emitters' first candidates otherwise. Throws
/// Error naming the node when no emitter accepts it, or when an emitter finds no kernel that fits the device.
CudaPlan lower_cuda(ir::Graph graph, passes::MemoryPlan memory, const ir::DeviceSpec& device,
                    const TuningTable* decisions = nullptr);

/// Calls `visit` for every node that needs kernels, in order. The spec lasts as long as the call.
void for_each_spec(const ir::Graph& graph, const passes::MemoryPlan& memory, const ir::DeviceSpec& device,
                   const std::function<void(const KernelSpec& spec, int node)>& visit);

}  // namespace difuse::codegen::cuda
