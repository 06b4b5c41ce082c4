// Plans for Hopper whose equal launches are joined.
#pragma once

#include <utility>

#include "codegen/cuda/join/nodes.h"
#include "codegen/cuda/lower_cuda.h"
#include "ir/device_spec.h"
#include "ir/verify.h"

namespace difuse::testing {

inline const ir::DeviceSpec& hopper() { return *ir::find_device_spec("h100"); }

inline codegen::cuda::CudaPlan joined_plan(const ir::Graph& graph) {
  codegen::cuda::JoinedNodes joined = codegen::cuda::join_equal_nodes(graph, hopper());
  ir::verify(joined.graph);
  return codegen::cuda::lower_cuda(std::move(joined.graph), std::move(joined.memory), hopper());
}

}  // namespace difuse::testing
