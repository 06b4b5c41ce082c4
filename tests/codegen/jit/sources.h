// Kernels to compile in tests.
#pragma once

#include <fmt/format.h>

#include <string>

#include "codegen/jit/kernel.h"

namespace difuse::codegen::testing {

/// y = factor * x + y with a predicated tail; different factors are different kernels.
inline CudaSource axpy(const std::string& name, float factor = 2, const std::string& architecture = "sm_80") {
  return {.name = name,
          .source = fmt::format(R"(
extern "C" __global__ void __launch_bounds__(256) {}(const float* x, float* y, long long n) {{
  const long long i = 256ll * blockIdx.x + threadIdx.x;
  if (i < n) y[i] = fmaf({:.9f}f, x[i], y[i]);
}}
)",
                                name, factor),
          .architecture = architecture,
          .options = {}};
}

/// An array indexed at run time has no place in registers.
inline CudaSource local_array(const std::string& name) {
  return {.name = name,
          .source = fmt::format(R"(
extern "C" __global__ void {}(float* x, int n) {{
  float a[64];
  for (int i = 0; i < 64; ++i) a[i] = x[i * n];
  for (int i = 0; i < n; ++i) a[(7 * i) & 63] += a[i & 63];
  for (int i = 0; i < 64; ++i) x[i] = a[i];
}}
)",
                                name),
          .architecture = "sm_80",
          .options = {}};
}

}  // namespace difuse::codegen::testing
