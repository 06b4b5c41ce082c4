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

CudaFindings probe_cuda(const ir::Options& options) {
  CudaFindings found;
  const auto driver = runtime::CudaDriver::load(&found.driver);
  if (driver) found.driver = fmt::format("for CUDA {}", driver->version_text());
  for (int i = 0; driver && i < driver->device_count(); ++i) {
    std::string reason;
    const auto device = runtime::CudaDevice::find(i, &reason);
    found.devices.push_back(device ? fmt::format("cuda:{} {}", i, device->description())
                                   : fmt::format("cuda:{} cannot be used: {}", i, reason));
  }
  const codegen::NvrtcSearch search{options.cuda_toolkit, driver ? driver->newest_toolkit() : 0};
  const auto nvrtc = codegen::NvrtcLibrary::load(search, &found.nvrtc);
  if (nvrtc) found.nvrtc = fmt::format("{} ({})", nvrtc->version().text(), nvrtc->stamp().path);
  return found;
}

}  // namespace difuse::models
