#include "runtime/cuda/device.h"

#include <fmt/format.h>

#include "ir/error.h"

namespace difuse::runtime {
namespace {

constexpr int kOldestArchitecture = 80;  // bf16 and tf32 matrix products, asynchronous copies.

constexpr const char* kRemedy = "difuse doctor says what this machine has";

}  // namespace

CudaDevice::CudaDevice(std::unique_ptr<const CudaDriver> driver, int ordinal)
    : driver_(std::move(driver)), ordinal_(ordinal) {
  try {
    start();
  } catch (...) {
    stop();
    throw;
  }
}

CudaDevice::~CudaDevice() { stop(); }

void CudaDevice::start() {
  if (ordinal_ < 0 || ordinal_ >= driver_->device_count()) {
    const int count = driver_->device_count();
    throw Error(fmt::format("there is no GPU {}: the driver sees {}", ordinal_,
                            count == 1 ? "one, GPU 0" : fmt::format("GPUs 0 to {}", count - 1)),
                "give one of these numbers; CUDA_VISIBLE_DEVICES may hide others", ExitCode::wrong_usage);
  }
  spec_ = driver_->device_spec(ordinal_);
  if (spec_.architecture < kOldestArchitecture) {
    throw Error(fmt::format("GPU {} is a {} ({}), and the kernels need sm_{} or newer; --device cpu works", ordinal_,
                            spec_.name, ir::architecture_name(spec_), kOldestArchitecture),
                kRemedy, ExitCode::wrong_usage);
  }
  const CudaDriver& cuda = *driver_;
  const std::string what = fmt::format("starting GPU {} ({})", ordinal_, spec_.name);
  cuda.require(cuda->cuDeviceGet(&handle_, ordinal_), what);
  cuda.require(cuda->cuDevicePrimaryCtxRetain(&context_, handle_), what);
  cuda.require(cuda->cuCtxSetCurrent(context_), what);
  cuda.require(cuda->cuStreamCreate(&stream_, cuda::kStreamNonBlocking), what);
}

void CudaDevice::stop() noexcept {
  if (context_ == nullptr) return;
  (*driver_)->cuCtxSetCurrent(context_);
  if (stream_ != nullptr) (*driver_)->cuStreamDestroy_v2(stream_);
  (*driver_)->cuDevicePrimaryCtxRelease_v2(handle_);
}

std::shared_ptr<const CudaDevice> CudaDevice::open(int ordinal, const char* library) {
  std::string reason;
  std::unique_ptr<const CudaDriver> driver = CudaDriver::load(&reason, library);
  if (!driver) throw Error(reason, kRemedy, ExitCode::wrong_usage);
  return std::shared_ptr<const CudaDevice>(new CudaDevice(std::move(driver), ordinal));
}

std::shared_ptr<const CudaDevice> CudaDevice::find(int ordinal, std::string* reason, const char* library) {
  try {
    return open(ordinal, library);
  } catch (const Error& error) {
    if (reason != nullptr) *reason = error.what();
    return nullptr;
  }
}

std::string CudaDevice::description() const {
  return fmt::format("{} ({}, driver {})", spec_.name, ir::architecture_name(spec_), driver_->version_text());
}

const CudaDriver& CudaDevice::use() const {
  const CudaDriver& cuda = *driver_;
  cuda.require(cuda->cuCtxSetCurrent(context_), "making the GPU's context current");
  return cuda;
}

void CudaDevice::wait(std::string_view what) const {
  const CudaDriver& cuda = use();
  cuda.require(cuda->cuStreamSynchronize(stream_), what);
}

}  // namespace difuse::runtime
