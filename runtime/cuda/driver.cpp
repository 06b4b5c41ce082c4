#include "runtime/cuda/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>

#include "ir/error.h"

namespace difuse::runtime {
namespace {

constexpr int kOldestVersion = 12000;  // NVRTC 12's code, cuLibraryLoadData and tensor maps.

constexpr std::string_view kStillWorks = "--device cpu trains and samples, and compile, inspect and doctor need no GPU";

/// Dense bf16 operations that one SM does in a cycle with fp32 accumulation: the datasheets' rates over SMs and clocks.
double contraction_flops_per_cycle(int architecture, std::string_view name) {
  if (architecture == 80) return 2048;
  if (architecture == 90) return 4096;
  if (architecture >= 100 && architecture < 120) return 8192;
  return name.find("GeForce") != std::string_view::npos ? 512 : 1024;
}

}  // namespace

void CudaDriver::Close::operator()(void* handle) const { dlclose(handle); }

std::string CudaDriver::version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string CudaDriver::describe(cuda::Result result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  functions_.cuGetErrorName(result, &name);
  functions_.cuGetErrorString(result, &text);
  if (name == nullptr) return fmt::format("CUDA error {}", static_cast<int>(result));
  return text == nullptr ? std::string(name) : fmt::format("{}: {}", name, text);
}

/// Empty when every function is there.
std::string CudaDriver::load_functions(const char* library) {
  // Never unloaded: the driver has threads and handlers of its own.
  handle_.reset(dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE));
  if (!handle_) return fmt::format("no NVIDIA driver was found: looked for {} ({})", library, dlerror());
  // The version first: in an old driver it explains what is missing.
  const auto version_of =
      reinterpret_cast<cuda::Functions::cuDriverGetVersion_signature*>(dlsym(handle_.get(), "cuDriverGetVersion"));
  if (version_of == nullptr) return fmt::format("{} is not NVIDIA's driver: it has no cuDriverGetVersion", library);
  if (version_of(&version_) != cuda::Result::success) version_ = 0;
  if (version_ != 0 && version_ < kOldestVersion) {
    return fmt::format("the NVIDIA driver is too old: it supports CUDA {}, and {} is needed", version_text(version_),
                       version_text(kOldestVersion));
  }
#define DIFUSE_CUDA_LOAD(symbol, ...)                                                               \
  functions_.symbol = reinterpret_cast<decltype(functions_.symbol)>(dlsym(handle_.get(), #symbol)); \
  if (functions_.symbol == nullptr)                                                                 \
    return fmt::format("{} (CUDA {}) has no {}", library, version_text(version_), #symbol);
  DIFUSE_CUDA_FUNCTIONS(DIFUSE_CUDA_LOAD)
#undef DIFUSE_CUDA_LOAD
  return {};
}

/// Empty when a device can be used.
std::string CudaDriver::start() {
  const cuda::Result started = functions_.cuInit(0);
  if (started == cuda::Result::stub_library) {
    return "no NVIDIA driver was found: libcuda.so.1 is the CUDA toolkit's stub, which only serves for linking";
  }
  if (started == cuda::Result::success) functions_.cuDeviceGetCount(&device_count_);
  if (started == cuda::Result::no_device || (started == cuda::Result::success && device_count_ == 0)) {
    return fmt::format("the NVIDIA driver (CUDA {}) sees no GPU: none is there, or CUDA_VISIBLE_DEVICES hides it",
                       version_text(version_));
  }
  if (started == cuda::Result::success) return {};
  return fmt::format("the NVIDIA driver (CUDA {}) does not start ({})", version_text(version_), describe(started));
}

std::unique_ptr<const CudaDriver> CudaDriver::load(std::string* reason, const char* library) {
  std::unique_ptr<CudaDriver> driver(new CudaDriver);
  std::string why = driver->load_functions(library);
  if (why.empty()) why = driver->start();
  if (why.empty()) {
    if (reason != nullptr) reason->clear();
    return driver;
  }
  if (reason != nullptr) *reason = fmt::format("{}; {}", why, kStillWorks);
  return nullptr;
}

bool CudaDriver::is_installed(const char* library) {
  return dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) != nullptr;
}

ir::DeviceSpec CudaDriver::device_spec(int ordinal) const {
  cuda::Device device = 0;
  require(functions_.cuDeviceGet(&device, ordinal), fmt::format("finding GPU {}", ordinal));
  std::array<char, 256> name{};
  require(functions_.cuDeviceGetName(name.data(), static_cast<int>(name.size()), device), "asking a GPU's name");
  const auto attribute = [&](cuda::DeviceAttribute which) {
    int value = 0;
    require(functions_.cuDeviceGetAttribute(&value, which, device), "asking a GPU's attributes");
    return value;
  };
  using enum cuda::DeviceAttribute;
  ir::DeviceSpec spec;
  spec.kind = ir::DeviceSpec::Kind::cuda;
  spec.name = name.data();
  spec.architecture = 10 * attribute(compute_capability_major) + attribute(compute_capability_minor);
  spec.processors = attribute(multiprocessor_count);
  spec.shared_memory_bytes = attribute(max_shared_memory_per_block_optin);
  spec.l2_bytes = attribute(l2_cache_size);
  // Two transfers a clock.
  spec.bandwidth = 2e3 * attribute(memory_clock_rate) * attribute(global_memory_bus_width) / 8;
  spec.contraction_flops = 1e3 * attribute(clock_rate) * static_cast<double>(spec.processors) *
                           contraction_flops_per_cycle(spec.architecture, spec.name);
  return spec;
}

void CudaDriver::require(cuda::Result result, std::string_view what) const {
  if (result == cuda::Result::success) return;
  std::string remedy;
  ExitCode exit_code = ExitCode::failed;
  switch (result) {
    case cuda::Result::out_of_memory:
      remedy = "use a smaller --batch, or a GPU whose memory is free";
      break;
    case cuda::Result::invalid_image:
    case cuda::Result::no_binary_for_gpu:
      remedy = fmt::format(
          "the kernels were compiled for another GPU, or by a CUDA newer than the driver ({}): update the driver, or "
          "set "
          "CUDA_HOME to an older toolkit",
          version_text());
      exit_code = ExitCode::wrong_usage;
      break;
    case cuda::Result::system_driver_mismatch:
      remedy = "the driver was updated while the machine ran: restart it";
      exit_code = ExitCode::wrong_usage;
      break;
    default:
      break;
  }
  throw Error(fmt::format("{} failed: {}", what, describe(result)), remedy, exit_code);
}

}  // namespace difuse::runtime
