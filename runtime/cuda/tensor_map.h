// Tensor maps for Hopper's copy engine, from their plain description.
#pragma once

#include <string_view>

#include "codegen/cuda/cuda_plan.h"
#include "runtime/cuda/driver.h"

namespace difuse::runtime {

/// `address`: of the tensor's first element on the device. Throws Error, which begins with `what`, where the driver
/// does not take it.
cuda::TensorMap encode_tensor_map(const CudaDriver& driver, const codegen::cuda::TensorMapSpec& spec, uint64_t address,
                                  std::string_view what);

}  // namespace difuse::runtime
