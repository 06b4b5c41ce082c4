// What a machine has, found out without needing any of it.
#pragma once

#include <string>
#include <vector>

#include "ir/options.h"

namespace difuse::models {

/// The processor's own name and its cores.
std::string cpu_name();

/// What the CUDA backend finds, each as a line: what it is, or what was looked for and why it is not there.
struct CudaFindings {
  std::string driver;                ///< libcuda.so.1
  std::string nvrtc;                 ///< The run-time compiler.
  std::vector<std::string> devices;  ///< Empty without a driver.
};
CudaFindings probe_cuda(const ir::Options& options);

}  // namespace difuse::models
