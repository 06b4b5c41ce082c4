// What a machine has, found out without needing any of it.
#pragma once

#include <string>
#include <vector>

#include "ir/options.h"

namespace difuse::models {

struct Finding {
  bool found = false;
  std::string text;  ///< What it is, or what was looked for and why it is not there.
};

/// The processor's own name and its cores.
std::string cpu_name();
/// The CUDA driver (libcuda.so.1) and its cards, a line each.
Finding probe_cuda_driver();
std::vector<std::string> cuda_devices();
/// The CUDA run-time compiler, as the backend finds it.
Finding probe_nvrtc(const ir::Options& options);

}  // namespace difuse::models
