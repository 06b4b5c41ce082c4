#include "models/cli/probe.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <fstream>
#include <memory>
#include <vector>

namespace difuse::models {
namespace {

/// A library loaded by name. It stays loaded: unloading a driver is not safe everywhere.
class Library {
 public:
  explicit Library(const char* name) : handle_(::dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) error_ = ::dlerror();
  }
  explicit operator bool() const { return handle_ != nullptr; }
  const std::string& error() const { return error_; }

  template <class Function>
  Function* find(const char* name) const {
    return reinterpret_cast<Function*>(::dlsym(handle_, name));
  }

 private:
  void* handle_;
  std::string error_;
};

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

Finding probe_cuda_driver() {
  const Library driver("libcuda.so.1");
  if (!driver) return {false, fmt::format("not found: looked for libcuda.so.1 ({})", driver.error())};
  auto* const init = driver.find<int(unsigned)>("cuInit");
  auto* const get_version = driver.find<int(int*)>("cuDriverGetVersion");
  auto* const get_count = driver.find<int(int*)>("cuDeviceGetCount");
  auto* const get_name = driver.find<int(char*, int, int)>("cuDeviceGetName");
  if (init == nullptr || get_version == nullptr || get_count == nullptr || get_name == nullptr) {
    return {false, "libcuda.so.1 is there, but lacks the driver's functions"};
  }
  if (const int status = init(0); status != 0) {
    return {
        false,
        fmt::format("libcuda.so.1 is there, but does not start (CUDA error {}): no card, or no driver module", status)};
  }
  int version = 0, count = 0;
  get_version(&version);
  get_count(&count);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    std::array<char, 256> name{};
    if (get_name(name.data(), static_cast<int>(name.size()), i) == 0) names.emplace_back(name.data());
  }
  return {true, fmt::format("for CUDA {}; {}", version_text(version),
                            names.empty() ? std::string("no card") : fmt::format("{}", fmt::join(names, ", ")))};
}

Finding probe_nvrtc() {
  constexpr std::array kNames = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"};
  for (const char* name : kNames) {
    const Library library(name);
    if (!library) continue;
    auto* const get_version = library.find<int(int*, int*)>("nvrtcVersion");
    int major = 0, minor = 0;
    if (get_version == nullptr || get_version(&major, &minor) != 0) continue;
    return {true, fmt::format("{}.{} ({})", major, minor, name)};
  }
  return {false, fmt::format("not found: looked for {} where the dynamic loader looks", fmt::join(kNames, ", "))};
}

}  // namespace difuse::models
