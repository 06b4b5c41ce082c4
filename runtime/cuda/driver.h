// NVIDIA's driver library, loaded by name: one binary runs with and without a GPU. This is the table of its functions
// and what every caller needs around it; contexts, streams and memory get their owners in the CUDA device.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "ir/device_spec.h"
#include "runtime/cuda/types.h"

namespace difuse::runtime {

class CudaDriver {
 public:
  static constexpr const char* kLibraryName = "libcuda.so.1";

  /// The driver, initialised, with at least one device; null otherwise. `reason`, where given, then says in one
  /// sentence what was looked for and what still works.
  static std::unique_ptr<const CudaDriver> load(std::string* reason = nullptr, const char* library = kLibraryName);

  /// Whether there is such a library, whatever it can do.
  static bool is_installed(const char* library = kLibraryName);

  /// driver->cuMemAlloc_v2(...), and so on.
  const cuda::Functions* operator->() const { return &functions_; }

  /// The newest CUDA whose code it loads; 13000 for 13.0.
  int version() const { return version_; }
  std::string version_text() const { return version_text(version_); }
  /// The newest toolkit whose code it loads, by its major version: 13.
  int newest_toolkit() const { return version_ / 1000; }
  int device_count() const { return device_count_; }

  /// What the driver says of a device; 0 <= ordinal < device_count(). The peak rates are those of its clocks.
  ir::DeviceSpec device_spec(int ordinal) const;

  /// Throws Error: "<what> failed: CUDA_ERROR_...: <the driver's text>", with a remedy where one is known.
  void require(cuda::Result result, std::string_view what) const;

 private:
  CudaDriver() = default;

  static std::string version_text(int version);
  std::string load_functions(const char* library);
  std::string start();
  std::string describe(cuda::Result result) const;

  struct Close {
    void operator()(void* handle) const;
  };
  std::unique_ptr<void, Close> handle_;
  cuda::Functions functions_;
  int version_ = 0;
  int device_count_ = 0;
};

}  // namespace difuse::runtime
