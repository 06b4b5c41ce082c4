// runtime/cuda/ says how a plan of CUDA kernels runs: the driver's functions, and an owner for everything that is made
// with them. What must not live here: what a kernel computes and its source (codegen/).
//
// This file: a GPU with its context and its one stream, on which everything of this process runs in order.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "codegen/tune/table.h"
#include "ir/device_spec.h"
#include "runtime/cuda/driver.h"

namespace difuse::runtime {

class CudaDevice {
 public:
  /// GPU number `ordinal`, as CUDA_VISIBLE_DEVICES counts them. Throws Error (wrong usage) where there is no driver, no
  /// such GPU, or one older than the kernels need.
  static std::shared_ptr<const CudaDevice> open(int ordinal = 0, const char* library = CudaDriver::kLibraryName);
  /// Null instead of an Error; `reason`, where given, then says why in one sentence.
  static std::shared_ptr<const CudaDevice> find(int ordinal = 0, std::string* reason = nullptr,
                                                const char* library = CudaDriver::kLibraryName);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const CudaDriver& driver() const { return *driver_; }
  const ir::DeviceSpec& spec() const { return spec_; }
  int ordinal() const { return ordinal_; }
  cuda::Device handle() const { return handle_; }
  cuda::Stream stream() const { return stream_; }
  /// What measured times hold for.
  codegen::TunedDevice tuned_device() const { return {spec_.name, spec_.processors, driver_->version_text()}; }
  /// "NVIDIA H100 80GB HBM3 (sm_90a, driver 13.0)"
  std::string description() const;

  /// The driver's functions, from the calling thread, on this GPU's context.
  const CudaDriver& use() const;
  /// Waits for all that was put on the stream; throws what went wrong in it as "<what> failed: ...".
  void wait(std::string_view what) const;

 private:
  CudaDevice(std::unique_ptr<const CudaDriver> driver, int ordinal);
  void start();
  void stop() noexcept;

  std::unique_ptr<const CudaDriver> driver_;
  int ordinal_;
  ir::DeviceSpec spec_;
  cuda::Device handle_ = 0;
  cuda::Context context_ = nullptr;
  cuda::Stream stream_ = nullptr;
};

}  // namespace difuse::runtime
