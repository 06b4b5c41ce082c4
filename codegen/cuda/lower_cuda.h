// From a fused graph to a plan of CUDA kernels; needs no GPU.
#pragma once

#include "codegen/cuda/cuda_plan.h"
#include "ir/device_spec.h"

namespace difuse::codegen::cuda {

/// Throws Error naming the node when no emitter accepts it, or when an emitter finds no kernel that fits the device.
CudaPlan lower_cuda(ir::Graph graph, passes::MemoryPlan memory, const ir::DeviceSpec& device);

}  // namespace difuse::codegen::cuda
