#include "runtime/cuda/roofline.h"

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>

#include "codegen/cuda/source/device_source.h"
#include "codegen/cuda/source/parameters.h"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/owners.h"

namespace difuse::runtime {
namespace {

constexpr int kBlockThreads = 256;
constexpr int kLoops = 4096;
constexpr int kChains = 8;  // Independent sums: enough to hide a product's latency.

/// A loop of independent sums in registers.
constexpr std::string_view kSource = R"(
extern "C" __global__ void __launch_bounds__($threads) $kernel(float* out, long long loops) {
  float sum[$chains][$lanes] = {};
  $operands
  for (long long i = 0; i < loops; ++i) {
#pragma unroll
    for (int c = 0; c < $chains; ++c) $product;
  }
  float total = 0.0f;
#pragma unroll
  for (int c = 0; c < $chains; ++c) {
#pragma unroll
    for (int l = 0; l < $lanes; ++l) total += sum[c][l];
  }
  out[blockIdx.x * $threads + threadIdx.x] = total;
}
)";

/// On random numbers: of zeros a GPU multiplies more in a second.
constexpr std::string_view kWgmmaSource = R"(
extern "C" __global__ void __launch_bounds__($threads, 1) $kernel(float* out, long long loops) {
  __shared__ __align__(1024) unsigned tiles[(64 + 256) * 32];
  for (unsigned i = threadIdx.x; i < (64 + 256) * 32; i += $threads) {
    tiles[i] = (i * 2654435761u & 0x807f807fu) | 0x3f003f00u;
  }
  fence_shared_for_engines();
  __syncthreads();
  const unsigned long long a = matrix_descriptor(tiles, 1024), b = matrix_descriptor(tiles + 64 * 32, 1024);
  float sum[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) sum[i] = 0.0f;
  multiply_registers(sum);
#pragma unroll 1
  for (long long i = 0; i < loops; ++i) {
    multiply_fence();
#pragma unroll
    for (int c = 0; c < $chains; ++c) {
      multiply_bf16(sum, matrix_moved(a, c % 4 * 32), matrix_moved(b, c % 4 * 32), true);
    }
    multiply_commit();
    multiply_wait<1>();
  }
  multiply_wait<0>();
  multiply_registers(sum);
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < 128; ++i) total += sum[i];
  out[blockIdx.x * $threads + threadIdx.x] = total;
})";

struct Products {
  const char* name;
  const char* text;
  std::string_view header, source;
  int lanes;  // Of one sum, a thread.
  const char* operands;
  const char* product;
  double flops_per_thread;  // Of one product.
};

constexpr Products kBf16{"products_bf16",
                         "mma.sync bf16",
                         "ptx.cuh",
                         kSource,
                         4,
                         "const unsigned a[4] = {threadIdx.x, 1u, 2u, 3u}, b[2] = {threadIdx.x, 1u};",
                         "mma_bf16(sum[c], a, b)",
                         2.0 * 16 * 8 * 16 / 32};
constexpr Products kBf16OnHopper{"products_wgmma",         "wgmma bf16", "ptx_sm90.cuh", kWgmmaSource, 128, "", "",
                                 2.0 * 64 * 256 * 16 / 128};
constexpr Products kTf32{"products_tf32",
                         "mma.sync tf32",
                         "ptx.cuh",
                         kSource,
                         4,
                         "const float x = threadIdx.x * 1e-3f, a[4] = {x, x, x, x}, b[2] = {x, x};",
                         "mma_tf32(sum[c], a, b)",
                         2.0 * 16 * 8 * 8 / 32};
constexpr Products kF32Products{"products_f32",
                                "fma f32",
                                "ptx.cuh",
                                kSource,
                                1,
                                "const float x = threadIdx.x * 1e-3f;",
                                "sum[c][0] = fmaf(sum[c][0], x, x)",
                                2.0};

const Products& products_of(passes::Precision precision, std::string_view architecture) {
  switch (precision) {
    case passes::Precision::bf16:
      return architecture == "sm_90a" ? kBf16OnHopper : kBf16;
    case passes::Precision::tf32:
      return kTf32;
    case passes::Precision::f32:
      break;
  }
  return kF32Products;
}

/// The best of several runs: what the card can do, whatever its clocks were doing at first.
double least_seconds(const CudaDevice& device, const std::function<void()>& work) {
  constexpr int kRuns = 6;
  double least = 0;
  for (int i = 0; i < kRuns; ++i) {
    Event start(device, /*timed=*/true), end(device, /*timed=*/true);
    start.record();
    work();
    end.record();
    end.wait("measuring the GPU");
    const double seconds = end.seconds_since(start);
    if (i > 0) least = least == 0 ? seconds : std::min(least, seconds);
  }
  return least;
}

double measure_copy(const CudaDevice& device) {
  constexpr size_t kBytes = size_t{1} << 28;
  const DeviceMemory from(device, kBytes, "measuring"), to(device, kBytes, "measuring");
  const CudaDriver& cuda = device.use();
  const double seconds = least_seconds(device, [&] {
    cuda.require(cuda->cuMemcpyDtoDAsync_v2(to.address(), from.address(), kBytes, device.stream()), "copying");
  });
  return 2.0 * kBytes / seconds;
}

double measure_products(const CudaDevice& device, const LoadedKernels& loaded, const Products& products) {
  const int64_t blocks = device.spec().processors * 4;
  const DeviceMemory out(device, static_cast<size_t>(blocks) * kBlockThreads * sizeof(float), "measuring");
  cuda::DevicePointer address = out.address();
  long long loops = kLoops;
  void* arguments[] = {&address, &loops};
  const cuda::LaunchConfig config{.grid_x = static_cast<unsigned>(blocks),
                                  .grid_y = 1,
                                  .grid_z = 1,
                                  .block_x = kBlockThreads,
                                  .block_y = 1,
                                  .block_z = 1,
                                  .dynamic_shared_bytes = 0,
                                  .stream = device.stream(),
                                  .attributes = nullptr,
                                  .attribute_count = 0};
  const CudaDriver& cuda = device.use();
  const double seconds = least_seconds(device, [&] {
    cuda.require(cuda->cuLaunchKernelEx(&config, loaded.function(0), arguments, nullptr), "measuring products");
  });
  const double threads = static_cast<double>(blocks) * kBlockThreads;
  return threads * kLoops * kChains * products.flops_per_thread / seconds;
}

}  // namespace

double Roofline::seconds(int64_t bytes, int64_t operations) const {
  return std::max(static_cast<double>(bytes) / bandwidth, static_cast<double>(operations) / flops);
}

codegen::CudaSource roofline_source(passes::Precision precision, const std::string& architecture) {
  const Products& products = products_of(precision, architecture);
  const std::string source = codegen::cuda::filled(products.source, {{"threads", std::to_string(kBlockThreads)},
                                                                     {"kernel", products.name},
                                                                     {"chains", std::to_string(kChains)},
                                                                     {"lanes", std::to_string(products.lanes)},
                                                                     {"operands", products.operands},
                                                                     {"product", products.product}});
  return {products.name, codegen::cuda::device_source({products.header}) + source, architecture, {}};
}

Roofline measure_roofline(const std::shared_ptr<const CudaDevice>& device, codegen::KernelCache& cache,
                          const ir::Options& options, passes::Precision precision) {
  const std::string architecture = ir::architecture_name(device->spec());
  const Products& products = products_of(precision, architecture);
  codegen::cuda::CudaPlan plan;  // One call, so that the kernel is compiled and loaded like any other.
  plan.sources.push_back(roofline_source(precision, architecture));
  plan.calls.push_back(
      {.source = 0, .node = 0, .grid = {}, .threads = kBlockThreads, .shared_bytes = 0, .arguments = {}});
  const LoadedKernels loaded(*device, plan, compile_kernels(plan, options, cache, device->driver().newest_toolkit()));
  return {measure_copy(*device), measure_products(*device, loaded, products), products.text};
}

}  // namespace difuse::runtime
