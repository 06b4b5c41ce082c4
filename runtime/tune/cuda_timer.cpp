#include "runtime/tune/cuda_timer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <deque>

#include "codegen/cuda/source/device_source.h"
#include "runtime/tensor_bytes.h"

namespace difuse::runtime {
namespace {

using codegen::cuda::CudaPlan;
using codegen::cuda::TuningSite;

constexpr int kThreads = 256, kBlocks = 1024;
constexpr int kFlush = 0, kCompare = 1;
constexpr int64_t kNumbers = 1 << 20;

constexpr const char* kFlushSource = R"(
extern "C" __global__ void __launch_bounds__(256) tuner_flush(const uint4* from, uint4* to, long long count) {
  uint4 sum = {0, 0, 0, 0};
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) {
    const uint4 x = from[i];
    sum.x |= x.x, sum.y |= x.y, sum.z |= x.z, sum.w |= x.w;
  }
  // Never so, but the compiler does not know it.
  if ((sum.x | sum.y | sum.z | sum.w) != 0) to[blockIdx.x * 256 + threadIdx.x] = sum;
})";

constexpr const char* kCompareSource = R"(
extern "C" __global__ void __launch_bounds__(256)
    tuner_compare(const unsigned* a, const unsigned* b, unsigned* differ, long long count) {
  bool same = true;
  for (long long i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) same = same && a[i] == b[i];
  if (!same) *differ = 1;
})";

/// Numbers of a fixed sequence: floats of mean 0 and of about 1, integers in 0 .. 3.
std::vector<double> numbers(ir::DType dtype, bool is_tf32) {
  std::vector<double> values(static_cast<size_t>(kNumbers));
  uint64_t state = 1;
  for (double& v : values) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const auto bits = static_cast<uint32_t>(state >> 32);
    v = ir::is_float(dtype) ? static_cast<double>(bits) * 0x1p-30 - 2 : bits >> 30;
    // 13 bits less than a float has; what is cut off instead of rounded is as good here.
    if (is_tf32) v = std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(v)) & 0xffffe000u);
  }
  return values;
}

}  // namespace

CudaPlan TimerTools::plan(const ir::DeviceSpec& device) {
  CudaPlan plan;
  const std::string architecture = ir::architecture_name(device);
  plan.sources.push_back({"tuner_flush", kFlushSource, architecture, {}});
  plan.sources.push_back({"tuner_compare", kCompareSource, architecture, {}});
  for (const int source : {kFlush, kCompare}) {
    plan.calls.push_back({.source = source, .node = 0, .grid = {.x = kBlocks}, .threads = kThreads, .arguments = {}});
  }
  return plan;
}

TimerTools::TimerTools(std::shared_ptr<const CudaDevice> device, const TuneMeans::Kernels& kernels)
    : device_(std::move(device)),
      plan_(plan(device_->spec())),
      kernels_(*device_, plan_, kernels),
      // Once through the cache and a bit, and room for what `tuner_flush` does not write.
      large_(*device_, static_cast<size_t>(std::max<int64_t>(2 * device_->spec().l2_bytes, kBlocks * kThreads * 16)),
             "the tuner"),
      flag_(*device_, sizeof(uint32_t), "the tuner") {
  large_.zero();
  flush();  // The driver loads code at its first launch, and that must not be captured.
}

void TimerTools::launch(int kernel, std::vector<uint64_t> arguments) {
  std::vector<void*> pointers;
  for (uint64_t& argument : arguments) pointers.push_back(&argument);
  const cuda::LaunchConfig config{.grid_x = kBlocks,
                                  .grid_y = 1,
                                  .grid_z = 1,
                                  .block_x = kThreads,
                                  .block_y = 1,
                                  .block_z = 1,
                                  .dynamic_shared_bytes = 0,
                                  .stream = device_->stream(),
                                  .attributes = nullptr,
                                  .attribute_count = 0};
  const CudaDriver& cuda = device_->use();
  cuda.require(cuda->cuLaunchKernelEx(&config, kernels_.function(kernel), pointers.data(), nullptr),
               "launching a kernel of the tuner");
}

void TimerTools::flush() { launch(kFlush, {large_.address(), large_.address(), large_.size() / 16}); }

bool TimerTools::same(cuda::DevicePointer a, cuda::DevicePointer b, int64_t bytes) {
  const CudaDriver& cuda = device_->use();
  flag_.zero();
  launch(kCompare, {a, b, flag_.address(), static_cast<uint64_t>(bytes / 4)});
  uint32_t differ = 0;
  cuda.require(cuda->cuMemcpyDtoHAsync_v2(&differ, flag_.address(), sizeof(differ), device_->stream()),
               "comparing results");
  device_->wait("comparing results");
  return differ == 0;
}

void TimerTools::fill(cuda::DevicePointer to, const TuningSite::Place& place) {
  const CudaDriver& cuda = device_->use();
  const ir::DType dtype = place.type.dtype;
  std::unique_ptr<DeviceMemory>& block = numbers_[{dtype, place.is_tf32}];
  if (!block) {
    std::vector<std::byte> bytes(static_cast<size_t>(kNumbers * ir::size_of(dtype)));
    encode(numbers(dtype, place.is_tf32), dtype, bytes);
    block = std::make_unique<DeviceMemory>(*device_, bytes.size(), "the tuner");
    cuda.require(cuda->cuMemcpyHtoDAsync_v2(block->address(), bytes.data(), bytes.size(), device_->stream()),
                 "uploading numbers");
    device_->wait("uploading numbers");
  }
  const auto bytes = static_cast<size_t>(place.type.bytes());
  for (size_t done = 0; done < bytes; done += block->size()) {
    cuda.require(cuda->cuMemcpyDtoDAsync_v2(to + done, block->address(), std::min(block->size(), bytes - done),
                                            device_->stream()),
                 "copying numbers");
  }
}

CudaTimer::CudaTimer(TimerTools& tools, const TuningSite& site, CudaPlan plan, const TuneMeans::Kernels& kernels)
    : tools_(tools),
      device_(tools.device()),
      plan_(std::move(plan)),
      choice_(site.index()),
      results_begin_(site.results_begin()),
      results_bytes_(site.arena_bytes() - site.results_begin()),
      kernels_(device_, plan_, kernels),
      arena_(device_, static_cast<size_t>(site.arena_bytes()), site.name()),
      workspace_(device_, static_cast<size_t>(plan_.workspace_bytes), site.name()),
      expected_(device_, static_cast<size_t>(results_bytes_), site.name()),
      launches_(device_, plan_, plan_.calls, kernels_, arena_.address(), workspace_.address()) {
  for (const TuningSite::Place& operand : site.operands()) {
    tools_.fill(arena_.address() + static_cast<cuda::DevicePointer>(operand.offset), operand);
  }
}

std::vector<size_t> CudaTimer::calls_of(size_t candidate) const {
  std::vector<size_t> calls;
  for (size_t i = 0; i < plan_.calls.size(); ++i) {
    if (plan_.calls[i].node == static_cast<int>(candidate)) calls.push_back(i);
  }
  return calls;
}

bool CudaTimer::agrees(size_t candidate) {
  const CudaDriver& cuda = device_.use();
  const cuda::DevicePointer results = arena_.address() + static_cast<cuda::DevicePointer>(results_begin_);
  const auto bytes = static_cast<size_t>(results_bytes_);
  // What is not written shows.
  cuda.require(cuda->cuMemsetD8Async(results, 0xff, bytes, device_.stream()), "clearing memory");
  for (const size_t call : calls_of(candidate)) {
    launches_.launch(call, /*dependent=*/false);
    device_.wait(launches_.name_of(call));
  }
  if (candidate != 0) return tools_.same(results, expected_.address(), results_bytes_);
  cuda.require(cuda->cuMemcpyDtoDAsync_v2(expected_.address(), results, bytes, device_.stream()), "keeping results");
  return true;
}

std::vector<std::vector<double>> CudaTimer::time(std::span<const size_t> candidates, int rounds) {
  constexpr const char* kWhat = "timing candidates of a kernel";
  struct Run {
    Run(const CudaDevice& device, size_t of) : place(of), start(device, /*timed=*/true), end(device, /*timed=*/true) {}
    size_t place;  // Among the candidates.
    Event start, end;
  };
  std::deque<Run> runs;
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < candidates.size(); ++i) {
      runs.emplace_back(device_, round % 2 == 0 ? i : candidates.size() - 1 - i);
    }
  }
  Capture capture(device_);
  for (Run& run : runs) {
    for (const size_t call : calls_of(candidates[run.place])) {
      const bool timed = plan_.calls[call].choice == choice_;
      if (timed) {
        tools_.flush();
        run.start.record_in_capture();
      }
      launches_.launch(call, /*dependent=*/false);
      if (!timed) continue;
      run.end.record_in_capture();
      break;
    }
  }
  const auto graph = capture.finish();
  graph->launch(kWhat);
  graph->launch(kWhat);
  device_.wait(kWhat);
  std::vector<std::vector<double>> seconds(candidates.size());
  for (const Run& run : runs) seconds[run.place].push_back(run.end.seconds_since(run.start));
  return seconds;
}

}  // namespace difuse::runtime
