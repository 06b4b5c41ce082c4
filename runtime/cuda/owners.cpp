#include "runtime/cuda/owners.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/error.h"

namespace difuse::runtime {
namespace {

std::string gigabytes(size_t bytes) { return fmt::format("{:.2f} GB", static_cast<double>(bytes) * 1e-9); }

/// The driver for a destructor, or null.
const CudaDriver* quietly(const CudaDevice& device) noexcept {
  try {
    return &device.use();
  } catch (...) {  // The context is gone, and with it what belonged to it.
    return nullptr;
  }
}

}  // namespace

DeviceMemory::DeviceMemory(const CudaDevice& device, size_t bytes, std::string_view what)
    : device_(device), size_(bytes) {
  if (bytes == 0) return;
  const CudaDriver& cuda = device_.use();
  const cuda::Result result = cuda->cuMemAlloc_v2(&address_, bytes);
  if (result == cuda::Result::out_of_memory) {
    size_t free = 0, total = 0;
    cuda->cuMemGetInfo_v2(&free, &total);
    throw Error(fmt::format("no memory on {}: {} takes {}, and {} of {} are free", device_.spec().name, what,
                            gigabytes(bytes), gigabytes(free), gigabytes(total)),
                "use a smaller --batch, --microbatch or a smaller model, or a GPU whose memory is free");
  }
  cuda.require(result, fmt::format("allocating {} for {}", gigabytes(bytes), what));
}

DeviceMemory::~DeviceMemory() {
  if (address_ == 0) return;
  if (const CudaDriver* cuda = quietly(device_)) (*cuda)->cuMemFree_v2(address_);
}

void DeviceMemory::zero() {
  if (size_ == 0) return;
  const CudaDriver& cuda = device_.use();
  cuda.require(cuda->cuMemsetD8Async(address_, 0, size_, device_.stream()), "clearing memory");
}

PinnedMemory::PinnedMemory(const CudaDevice& device, size_t bytes) : device_(device), size_(bytes) {
  const CudaDriver& cuda = device_.use();
  cuda.require(cuda->cuMemHostAlloc(&memory_, std::max<size_t>(bytes, 1), cuda::kMemHostAllocPortable),
               fmt::format("pinning {} of host memory", gigabytes(bytes)));
}

PinnedMemory::~PinnedMemory() {
  if (const CudaDriver* cuda = quietly(device_)) (*cuda)->cuMemFreeHost(memory_);
}

Event::Event(const CudaDevice& device, bool timed) : device_(device) {
  const CudaDriver& cuda = device_.use();
  cuda.require(cuda->cuEventCreate(&event_, timed ? 0 : cuda::kEventDisableTiming), "making an event");
}

Event::~Event() {
  if (const CudaDriver* cuda = quietly(device_)) (*cuda)->cuEventDestroy_v2(event_);
}

void Event::record() {
  const CudaDriver& cuda = device_.use();
  cuda.require(cuda->cuEventRecord(event_, device_.stream()), "recording an event");
}

void Event::record_in_capture() {
  const CudaDriver& cuda = device_.use();
  cuda.require(cuda->cuEventRecordWithFlags(event_, device_.stream(), cuda::kEventRecordExternal),
               "capturing an event");
}

void Event::wait(std::string_view what) const {
  const CudaDriver& cuda = device_.use();
  cuda.require(cuda->cuEventSynchronize(event_), what);
}

double Event::seconds_since(const Event& start) const {
  const CudaDriver& cuda = device_.use();
  float milliseconds = 0;
  cuda.require(cuda->cuEventElapsedTime(&milliseconds, start.event_, event_), "reading the time of an event");
  return 1e-3 * static_cast<double>(milliseconds);
}

CudaGraph::CudaGraph(const CudaDevice& device, cuda::Graph graph) : device_(device) {
  const CudaDriver& cuda = device_.use();
  cuda.require(cuda->cuGraphGetNodes(graph, nullptr, &nodes_), "counting a graph's nodes");
  cuda.require(cuda->cuGraphInstantiateWithFlags(&exec_, graph, 0), "instantiating a CUDA graph");
  cuda.require(cuda->cuGraphUpload(exec_, device_.stream()), "uploading a CUDA graph");
}

CudaGraph::~CudaGraph() {
  if (const CudaDriver* cuda = quietly(device_)) (*cuda)->cuGraphExecDestroy(exec_);
}

void CudaGraph::launch(std::string_view what) {
  const CudaDriver& cuda = device_.use();
  cuda.require(cuda->cuGraphLaunch(exec_, device_.stream()), what);
}

Capture::Capture(const CudaDevice& device) : device_(device) {
  const CudaDriver& cuda = device_.use();
  cuda.require(cuda->cuStreamBeginCapture_v2(device_.stream(), cuda::CaptureMode::thread_local_), "starting a capture");
  active_ = true;
}

Capture::~Capture() {
  const CudaDriver* cuda = active_ ? quietly(device_) : nullptr;
  if (cuda == nullptr) return;
  cuda::Graph graph = nullptr;
  (*cuda)->cuStreamEndCapture(device_.stream(), &graph);
  if (graph != nullptr) (*cuda)->cuGraphDestroy(graph);
}

std::unique_ptr<CudaGraph> Capture::finish() {
  const CudaDriver& cuda = device_.use();
  active_ = false;
  cuda::Graph graph = nullptr;
  cuda.require(cuda->cuStreamEndCapture(device_.stream(), &graph), "ending a capture");
  const auto destroy = [&cuda](cuda::Graph g) { cuda->cuGraphDestroy(g); };
  const std::unique_ptr<cuda::GraphTag, decltype(destroy)> owner(graph, destroy);
  return std::unique_ptr<CudaGraph>(new CudaGraph(device_, graph));
}

}  // namespace difuse::runtime
