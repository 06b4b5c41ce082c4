// What a GPU reaches in copies and in matrix products, measured: the yardstick for kernels.
#pragma once

#include <string>

#include "codegen/jit/kernel.h"
#include "codegen/jit/kernel_cache.h"
#include "ir/options.h"
#include "runtime/compile.h"
#include "runtime/cuda/device.h"

namespace difuse::runtime {

struct Roofline {
  double bandwidth = 0;  ///< Bytes read + written a second by a copy of half a gigabyte.
  double flops = 0;      ///< Operations a second of a loop of products in registers.
  std::string products;  ///< Which: "mma.sync bf16".

  /// The least seconds for so much work.
  double seconds(int64_t bytes, int64_t operations) const;
};

/// The kernel that measures a precision's products.
codegen::CudaSource roofline_source(passes::Precision precision, const std::string& architecture);

/// The products are those of the precision: bf16 and tf32 on the matrix units, f32 as fused multiply-adds.
Roofline measure_roofline(const std::shared_ptr<const CudaDevice>& device, codegen::KernelCache& cache,
                          const ir::Options& options, passes::Precision precision);

}  // namespace difuse::runtime
