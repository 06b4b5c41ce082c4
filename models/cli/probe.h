// What a machine has, found out without needing any of it.
#pragma once

#include <string>

namespace difuse::models {

struct Finding {
  bool found = false;
  std::string text;  ///< What it is, or what was looked for and why it is not there.
};

/// The processor's own name and its cores.
std::string cpu_name();
/// The CUDA driver (libcuda.so.1) and its cards.
Finding probe_cuda_driver();
/// The CUDA run-time compiler (libnvrtc.so of CUDA 11 to 13).
Finding probe_nvrtc();

}  // namespace difuse::models
