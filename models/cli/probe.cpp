#include "models/cli/probe.h"

#include <fmt/format.h>

#include <fstream>

#include "codegen/jit/nvrtc.h"
#include "ir/error.h"
#include "runtime/cuda/device.h"

namespace difuse::models {

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

Finding probe_cuda_driver() {
  std::string reason;
  const auto driver = runtime::CudaDriver::load(&reason);
  if (!driver) return {false, reason};
  return {true, fmt::format("for CUDA {}", driver->version_text())};
}

std::vector<std::string> cuda_devices() {
  std::vector<std::string> lines;
  const auto driver = runtime::CudaDriver::load();
  for (int i = 0; driver && i < driver->device_count(); ++i) {
    std::string reason;
    const auto device = runtime::CudaDevice::find(i, &reason);
    lines.push_back(device ? fmt::format("cuda:{} {}", i, device->description())
                           : fmt::format("cuda:{} cannot be used: {}", i, reason));
  }
  return lines;
}

Finding probe_nvrtc(const ir::Options& options) {
  std::string reason;
  const auto driver = runtime::CudaDriver::load();
  const int newest = driver ? driver->version() / 1000 : 0;
  const auto nvrtc = codegen::NvrtcLibrary::load({.toolkit = options.cuda_toolkit, .newest_major = newest}, &reason);
  if (!nvrtc) return {false, reason};
  return {true, fmt::format("{} ({})", nvrtc->version().text(), nvrtc->stamp().path)};
}

}  // namespace difuse::models
