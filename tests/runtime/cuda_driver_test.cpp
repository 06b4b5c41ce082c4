#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "codegen/jit/nvrtc.h"
#include "ir/error.h"
#include "runtime/cuda/driver.h"
#include "tests/support/temp_folder.h"

namespace difuse::runtime {
namespace {

using namespace difuse::test;

TEST(CudaDriver, LoadsOrSaysWhatIsMissingAndWhatStillWorks) {
  std::string reason = "untouched";
  const auto driver = CudaDriver::load(&reason);
  if (driver) {
    EXPECT_EQ(reason, "");
    EXPECT_GE(driver->version(), 12000);
    EXPECT_GE(driver->device_count(), 1);
    return;
  }
  EXPECT_CONTAINS(reason, "driver");
  EXPECT_CONTAINS(reason, "--device cpu");
  EXPECT_EQ(reason.find('\n'), std::string::npos);
}

TEST(CudaDriver, NamesTheLibraryThatIsNotThereOrNotADriver) {
  std::string reason;
  EXPECT_EQ(CudaDriver::load(&reason, "libcuda-that-is-nowhere.so.1"), nullptr);
  EXPECT_CONTAINS(reason, "no NVIDIA driver was found: looked for libcuda-that-is-nowhere.so.1");
  EXPECT_EQ(CudaDriver::load(&reason, "libm.so.6"), nullptr);
  EXPECT_CONTAINS(reason, "libm.so.6 is not NVIDIA's driver");
  EXPECT_EQ(CudaDriver::load(nullptr, "libm.so.6"), nullptr);
}

/// A GPU, its context and a stream; skips where there is none.
class GpuCudaDriver : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    driver_ = CudaDriver::load(&reason);
    if (!driver_) GTEST_SKIP() << reason;
    nvrtc_ = codegen::NvrtcLibrary::load({.toolkit = {}, .newest_major = driver_->version() / 1000}, &reason);
    if (!nvrtc_) GTEST_SKIP() << reason;
    const CudaDriver& cuda = *driver_;
    cuda.require(cuda->cuDeviceGet(&device_, 0), "finding the GPU");
    cuda.require(cuda->cuDevicePrimaryCtxRetain(&context_, device_), "taking the context");
    cuda.require(cuda->cuCtxSetCurrent(context_), "making the context current");
    cuda.require(cuda->cuStreamCreate(&stream_, cuda::kStreamNonBlocking), "making a stream");
  }
  void TearDown() override {
    if (stream_ != nullptr) (*driver_)->cuStreamDestroy_v2(stream_);
    if (context_ != nullptr) (*driver_)->cuDevicePrimaryCtxRelease_v2(device_);
  }
  codegen::CompiledKernel compile(const std::string& name, const std::string& source) const {
    const std::string architecture = ir::architecture_name(driver_->device_spec(0));
    return nvrtc_->compile({.name = name, .source = source, .architecture = architecture, .options = {}});
  }

  std::unique_ptr<const CudaDriver> driver_;
  std::shared_ptr<const codegen::NvrtcLibrary> nvrtc_;
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
  cuda::Stream stream_ = nullptr;
};

TEST_F(GpuCudaDriver, DescribesTheCard) {
  const ir::DeviceSpec spec = driver_->device_spec(0);
  EXPECT_EQ(spec.kind, ir::DeviceSpec::Kind::cuda);
  EXPECT_FALSE(spec.name.empty());
  EXPECT_GT(spec.shared_memory_bytes, 48 * 1024);
  const ir::DeviceSpec* known = ir::find_device_spec(ir::architecture_name(spec));
  if (known == nullptr) return;
  // Cards of one architecture differ, not by an order of magnitude.
  EXPECT_GT(spec.bandwidth, known->bandwidth / 8) << spec.name;
  EXPECT_LT(spec.bandwidth, known->bandwidth * 4) << spec.name;
  EXPECT_GT(spec.contraction_flops, known->contraction_flops / 8) << spec.name;
  EXPECT_LT(spec.contraction_flops, known->contraction_flops * 4) << spec.name;
  EXPECT_EQ(spec.shared_memory_bytes, known->shared_memory_bytes) << spec.name;
}

TEST_F(GpuCudaDriver, ErrorsCarryTheDriversWords) {
  const CudaDriver& cuda = *driver_;
  cuda::DevicePointer memory = 0;
  const std::string text = error_of([&] { cuda.require(cuda->cuMemAlloc_v2(&memory, size_t{1} << 50), "the arena"); });
  EXPECT_CONTAINS(text, "the arena failed: CUDA_ERROR_OUT_OF_MEMORY: ");
  EXPECT_CONTAINS(text, "--batch");

  // Code is looked at when its first kernel is asked for.
  cuda::Library library = nullptr;
  cuda::Kernel kernel = nullptr;
  const std::string junk = "no cubin";
  EXPECT_CONTAINS(error_of([&] {
                    cuda.require(
                        cuda->cuLibraryLoadData(&library, junk.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
                        "loading kernel junk");
                    cuda.require(cuda->cuLibraryGetKernel(&kernel, library, "junk"), "loading kernel junk");
                  }),
                  "loading kernel junk failed: CUDA_ERROR_");
  if (library != nullptr) cuda->cuLibraryUnload(library);
}

TEST_F(GpuCudaDriver, LaunchesEagerlyAndAsAGraph) {
  const CudaDriver& cuda = *driver_;
  constexpr int kCount = 1000;
  const auto kernel = compile("add_one", R"(
extern "C" __global__ void __launch_bounds__(256) add_one(float* y, const float* step, int n) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  const int i = 256 * blockIdx.x + threadIdx.x;
  if (i < n) y[i] = y[i] + *step;
})");
  cuda::Library library = nullptr;
  cuda::Kernel handle = nullptr;
  cuda::Function function = nullptr;
  cuda.require(cuda->cuLibraryLoadData(&library, kernel.cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
               "loading code");
  cuda.require(cuda->cuLibraryGetKernel(&handle, library, "add_one"), "finding the kernel");
  cuda.require(cuda->cuKernelGetFunction(&function, handle), "loading the kernel");
  int registers = 0;
  cuda.require(cuda->cuKernelGetAttribute(&registers, cuda::FunctionAttribute::num_regs, handle, device_), "asking");
  EXPECT_EQ(registers, kernel.resources.registers);
  cuda.require(
      cuda->cuKernelSetAttribute(cuda::FunctionAttribute::max_dynamic_shared_size_bytes, 64 * 1024, handle, device_),
      "raising the shared memory");

  cuda::DevicePointer y = 0, step = 0;
  cuda.require(cuda->cuMemAlloc_v2(&y, kCount * sizeof(float)), "memory");
  cuda.require(cuda->cuMemAlloc_v2(&step, sizeof(float)), "memory");
  const float one = 1;
  cuda.require(cuda->cuMemcpyHtoDAsync_v2(step, &one, sizeof(one), stream_), "the upload");
  cuda.require(cuda->cuMemsetD8Async(y, 0, kCount * sizeof(float), stream_), "zeros");

  cuda::LaunchAttribute attributes[2] = {};
  attributes[0].id = cuda::LaunchAttributeId::programmatic_stream_serialization;
  attributes[0].value.programmatic_stream_serialization = 1;
  attributes[1].id = cuda::LaunchAttributeId::cluster_dimension;
  attributes[1].value.cluster = {2, 1, 1};
  const bool is_hopper = driver_->device_spec(0).architecture >= 90;
  const cuda::LaunchConfig config{.grid_x = 4,
                                  .grid_y = 1,
                                  .grid_z = 1,
                                  .block_x = 256,
                                  .block_y = 1,
                                  .block_z = 1,
                                  .dynamic_shared_bytes = 64 * 1024,
                                  .stream = stream_,
                                  .attributes = attributes,
                                  .attribute_count = is_hopper ? 2u : 0u};
  int n = kCount;
  void* arguments[] = {&y, &step, &n};
  const auto launch = [&] {
    cuda.require(cuda->cuLaunchKernelEx(&config, function, arguments, nullptr), "the launch");
  };
  launch();

  cuda::Graph graph = nullptr;
  cuda::GraphExec exec = nullptr;
  cuda.require(cuda->cuStreamBeginCapture_v2(stream_, cuda::CaptureMode::thread_local_), "starting the capture");
  cuda::CaptureStatus status{};
  cuda.require(cuda->cuStreamIsCapturing(stream_, &status), "asking the stream");
  EXPECT_EQ(status, cuda::CaptureStatus::active);
  for (int i = 0; i < 3; ++i) launch();
  cuda.require(cuda->cuStreamEndCapture(stream_, &graph), "ending the capture");
  size_t nodes = 0;
  cuda.require(cuda->cuGraphGetNodes(graph, nullptr, &nodes), "counting nodes");
  EXPECT_EQ(nodes, 3u);
  cuda.require(cuda->cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiating");
  cuda.require(cuda->cuGraphUpload(exec, stream_), "uploading");

  cuda::Event start = nullptr, end = nullptr;
  cuda.require(cuda->cuEventCreate(&start, 0), "an event");
  cuda.require(cuda->cuEventCreate(&end, 0), "an event");
  cuda.require(cuda->cuEventRecord(start, stream_), "recording");
  for (int i = 0; i < 10; ++i) cuda.require(cuda->cuGraphLaunch(exec, stream_), "replaying");
  cuda.require(cuda->cuEventRecord(end, stream_), "recording");
  cuda.require(cuda->cuEventSynchronize(end), "waiting");
  float milliseconds = 0;
  cuda.require(cuda->cuEventElapsedTime(&milliseconds, start, end), "timing");
  EXPECT_GT(milliseconds, 0);

  std::vector<float> host(kCount);
  cuda.require(cuda->cuMemcpyDtoH_v2(host.data(), y, kCount * sizeof(float)), "the download");
  EXPECT_EQ(host, std::vector<float>(kCount, 31.0f));

  cuda->cuEventDestroy_v2(start);
  cuda->cuEventDestroy_v2(end);
  cuda->cuGraphExecDestroy(exec);
  cuda->cuGraphDestroy(graph);
  cuda->cuMemFree_v2(y);
  cuda->cuMemFree_v2(step);
  cuda->cuLibraryUnload(library);
}

// The map goes in as a kernel argument; the kernel fetches a swizzled box that hangs over the tensor's edge.
TEST_F(GpuCudaDriver, TensorMapsLoadBoxes) {
  if (driver_->device_spec(0).architecture < 90) GTEST_SKIP() << "no tensor maps before Hopper";
  const CudaDriver& cuda = *driver_;
  constexpr int kRows = 12, kColumns = 32, kBoxRows = 8;  // f32: a row is 128 bytes.
  const auto kernel = compile("fetch", R"(
struct alignas(64) TensorMap { unsigned long long opaque[16]; };
extern "C" __global__ void __launch_bounds__(256) fetch(const __grid_constant__ TensorMap map, float* y, int row) {
  extern __shared__ __align__(1024) float box[];
  __shared__ __align__(8) unsigned long long barrier;
  const unsigned at = (unsigned)__cvta_generic_to_shared(&barrier);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(at) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"((unsigned)__cvta_generic_to_shared(box)), "l"(&map), "r"(0), "r"(row), "r"(at) : "memory");
  }
  __syncthreads();
  unsigned done = 0;
  while (done == 0) {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(at) : "memory");
  }
  const int r = threadIdx.x / 32, c = threadIdx.x % 32;
  y[threadIdx.x] = box[32 * r + (((c / 4) ^ (r % 8)) * 4 + c % 4)];  // Swizzled by 128 bytes.
})");
  cuda::Library library = nullptr;
  cuda::Kernel handle = nullptr;
  cuda::Function function = nullptr;
  cuda.require(cuda->cuLibraryLoadData(&library, kernel.cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
               "loading code");
  cuda.require(cuda->cuLibraryGetKernel(&handle, library, "fetch"), "finding the kernel");
  cuda.require(cuda->cuKernelGetFunction(&function, handle), "loading the kernel");

  std::vector<float> host(kRows * kColumns);
  for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<float>(i + 1);
  cuda::DevicePointer x = 0, y = 0;
  cuda.require(cuda->cuMemAlloc_v2(&x, host.size() * sizeof(float)), "memory");
  cuda.require(cuda->cuMemAlloc_v2(&y, kBoxRows * kColumns * sizeof(float)), "memory");
  cuda.require(cuda->cuMemcpyHtoD_v2(x, host.data(), host.size() * sizeof(float)), "the upload");

  cuda::TensorMap map{};
  const uint64_t dims[] = {kColumns, kRows};
  const uint64_t strides[] = {kColumns * sizeof(float)};
  const uint32_t box[] = {kColumns, kBoxRows};
  const uint32_t element_strides[] = {1, 1};
  cuda.require(
      cuda->cuTensorMapEncodeTiled(&map, cuda::TensorMapType::f32, 2, reinterpret_cast<void*>(x), dims, strides, box,
                                   element_strides, cuda::TensorMapInterleave::none, cuda::TensorMapSwizzle::bytes_128,
                                   cuda::TensorMapL2Promotion::bytes_256, cuda::TensorMapFill::zeros),
      "making a tensor map");
  for (int row : {0, 7, -3}) {
    void* arguments[] = {&map, &y, &row};
    const cuda::LaunchConfig config{.grid_x = 1,
                                    .grid_y = 1,
                                    .grid_z = 1,
                                    .block_x = kBoxRows * kColumns,
                                    .block_y = 1,
                                    .block_z = 1,
                                    .dynamic_shared_bytes = kBoxRows * kColumns * sizeof(float),
                                    .stream = stream_,
                                    .attributes = nullptr,
                                    .attribute_count = 0};
    cuda.require(cuda->cuLaunchKernelEx(&config, function, arguments, nullptr), "the launch");
    cuda.require(cuda->cuStreamSynchronize(stream_), "waiting");
    std::vector<float> got(kBoxRows * kColumns);
    cuda.require(cuda->cuMemcpyDtoH_v2(got.data(), y, got.size() * sizeof(float)), "the download");
    for (int i = 0; i < kBoxRows * kColumns; ++i) {
      const int r = row + i / kColumns;
      const float expected = r < 0 || r >= kRows ? 0 : host[static_cast<size_t>(r * kColumns + i % kColumns)];
      ASSERT_EQ(got[static_cast<size_t>(i)], expected) << "row " << row << " element " << i;
    }
  }
  cuda->cuMemFree_v2(x);
  cuda->cuMemFree_v2(y);
  cuda->cuLibraryUnload(library);
}

}  // namespace
}  // namespace difuse::runtime
