#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/types.h"
#include "tests/support/fake_cuda/fake_kernel.h"

namespace difuse::runtime::cuda {

using Work = std::function<Result()>;
using Clock = std::chrono::steady_clock;

struct ContextTag {};
struct LibraryTag {
  test::FakeCubin cubin;
};
struct KernelTag {};
struct FunctionTag {};
struct EventTag {
  bool timed = false, recorded = false, done = false;
  Clock::time_point time;
};
struct GraphTag {
  std::vector<Work> nodes;
};
struct GraphNodeTag {};
struct GraphExecTag {
  std::vector<Work> nodes;
};
struct StreamTag {
  std::deque<Work> queue;
  std::unique_ptr<GraphTag> capture;
};

namespace {

struct Gpu {
  ContextTag context;
  StreamTag* stream = nullptr;  // The latest: the tests have one.
  Result sticky = Result::success;
  std::map<const std::byte*, size_t> pinned;
  std::map<DevicePointer, size_t> allocations;
};

Gpu& gpu() {
  static Gpu the_gpu;
  return the_gpu;
}

int setting(const char* name, int fallback) {
  const char* value = std::getenv(name);
  return value == nullptr ? fallback : std::atoi(value);
}

int devices() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible != nullptr && *visible == '\0' ? 0 : setting("FAKE_CUDA_DEVICES", 1);
}

bool is_pinned(const void* memory) {
  const auto* at = static_cast<const std::byte*>(memory);
  auto found = gpu().pinned.upper_bound(at);
  if (found == gpu().pinned.begin()) return false;
  --found;
  return at < found->first + found->second;
}

/// Whether all these bytes are the GPU's.
bool is_device(DevicePointer at, size_t bytes) {
  auto found = gpu().allocations.upper_bound(at);
  if (found == gpu().allocations.begin()) return false;
  --found;
  return at + bytes <= found->first + found->second;
}

void* host(DevicePointer at) { return reinterpret_cast<void*>(at); }

Result put(StreamTag* stream, Work work) {
  if (gpu().sticky != Result::success) return gpu().sticky;
  if (stream->capture) {
    stream->capture->nodes.push_back(std::move(work));
  } else {
    stream->queue.push_back(std::move(work));
  }
  return Result::success;
}

/// Does what waits on the stream until `stop` says so; all of it without.
Result drain(StreamTag* stream, const std::function<bool()>& stop = {}) {
  while (stream != nullptr && !stream->queue.empty() && !(stop && stop())) {
    const Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (gpu().sticky == Result::success) gpu().sticky = work();
  }
  return gpu().sticky;
}

Result record(EventTag* event, StreamTag* stream) {
  event->recorded = true;
  event->done = false;
  return put(stream, [event] {
    event->time = Clock::now();
    event->done = true;
    return Result::success;
  });
}

}  // namespace

extern "C" {

Result cuInit(unsigned) { return devices() == 0 ? Result::no_device : Result::success; }
Result cuDriverGetVersion(int* version) {
  *version = setting("FAKE_CUDA_VERSION", 13000);
  return Result::success;
}
Result cuGetErrorName(Result result, const char** name) {
  *name = result == Result::launch_failed   ? "CUDA_ERROR_LAUNCH_FAILED"
          : result == Result::out_of_memory ? "CUDA_ERROR_OUT_OF_MEMORY"
          : result == Result::invalid_image ? "CUDA_ERROR_INVALID_IMAGE"
                                            : "CUDA_ERROR_OTHER";
  return Result::success;
}
Result cuGetErrorString(Result, const char** text) {
  *text = "what the fake driver says";
  return Result::success;
}
Result cuDeviceGetCount(int* count) {
  *count = devices();
  return Result::success;
}
Result cuDeviceGet(Device* device, int ordinal) {
  *device = ordinal;
  return Result::success;
}
Result cuDeviceGetName(char* name, int bytes, Device) {
  std::strncpy(name, "Fake GPU", static_cast<size_t>(bytes));
  return Result::success;
}
Result cuDeviceGetAttribute(int* value, DeviceAttribute attribute, Device) {
  const int architecture = setting("FAKE_CUDA_ARCHITECTURE", 90);
  switch (attribute) {
    case DeviceAttribute::compute_capability_major:
      *value = architecture / 10;
      break;
    case DeviceAttribute::compute_capability_minor:
      *value = architecture % 10;
      break;
    case DeviceAttribute::max_shared_memory_per_block_optin:
      *value = 227 * 1024;
      break;
    default:
      *value = 100;
  }
  return Result::success;
}
Result cuDeviceTotalMem_v2(size_t* bytes, Device) {
  *bytes = size_t{1} << 34;
  return Result::success;
}
Result cuDevicePrimaryCtxRetain(Context* context, Device) {
  *context = &gpu().context;
  return Result::success;
}
Result cuDevicePrimaryCtxRelease_v2(Device) { return Result::success; }
Result cuCtxSetCurrent(Context) { return Result::success; }
Result cuCtxSynchronize() { return drain(gpu().stream); }

Result cuLibraryLoadData(Library* library, const void* code, int*, void**, unsigned, int*, void**, unsigned) {
  test::FakeCubin cubin;
  if (std::memcmp(code, cubin.magic, sizeof(cubin.magic)) != 0) return Result::invalid_image;
  std::memcpy(static_cast<void*>(&cubin), code, sizeof(cubin));
  *library = new LibraryTag{cubin};
  return Result::success;
}
Result cuLibraryUnload(Library library) {
  delete library;
  return Result::success;
}
Result cuLibraryGetKernel(Kernel* kernel, Library library, const char*) {
  *kernel = reinterpret_cast<Kernel>(library);
  return Result::success;
}
Result cuKernelGetFunction(Function* function, Kernel kernel) {
  *function = reinterpret_cast<Function>(kernel);
  return Result::success;
}
Result cuKernelGetAttribute(int* value, FunctionAttribute, Kernel, Device) {
  *value = 0;
  return Result::success;
}
Result cuKernelSetAttribute(FunctionAttribute, int, Kernel, Device) { return Result::success; }
Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int*, Function, int, size_t) { return Result::success; }
Result cuOccupancyMaxActiveClusters(int*, Function, const LaunchConfig*) { return Result::success; }
Result cuLaunchKernelEx(const LaunchConfig* config, Function function, void** arguments, void**) {
  const test::FakeCubin cubin = reinterpret_cast<LibraryTag*>(function)->cubin;
  std::vector<uint64_t> values(cubin.arguments);
  if (cubin.is_table) {
    std::memcpy(values.data(), arguments[0], values.size() * sizeof(uint64_t));
  } else {
    for (size_t i = 0; i < values.size(); ++i) std::memcpy(&values[i], arguments[i], sizeof(uint64_t));
  }
  return put(config->stream, [cubin, values, blocks = config->grid_x * config->grid_y * config->grid_z] {
    return cubin.kernel(values.data(), blocks) == 0 ? Result::success : Result::launch_failed;
  });
}

Result cuMemGetInfo_v2(size_t* free, size_t* total) {
  *free = size_t{1} << 33;
  *total = size_t{1} << 34;
  return Result::success;
}
Result cuMemAlloc_v2(DevicePointer* pointer, size_t bytes) {
  if (bytes > size_t{1} << 33) return Result::out_of_memory;
  void* memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  std::memset(memory, 0xff, bytes);  // Nobody may count on zeros.
  *pointer = reinterpret_cast<DevicePointer>(memory);
  gpu().allocations[*pointer] = bytes;
  return Result::success;
}
Result cuMemFree_v2(DevicePointer pointer) {
  drain(gpu().stream);
  gpu().allocations.erase(pointer);
  std::free(host(pointer));
  return Result::success;
}
Result cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = std::malloc(bytes);
  gpu().pinned[static_cast<std::byte*>(*memory)] = bytes;
  return Result::success;
}
Result cuMemFreeHost(void* memory) {
  drain(gpu().stream);
  gpu().pinned.erase(static_cast<std::byte*>(memory));
  std::free(memory);
  return Result::success;
}
Result cuMemcpyHtoD_v2(DevicePointer to, const void* from, size_t bytes) {
  std::memcpy(host(to), from, bytes);
  return gpu().sticky;
}
Result cuMemcpyDtoH_v2(void* to, DevicePointer from, size_t bytes) {
  std::memcpy(to, host(from), bytes);
  return gpu().sticky;
}
Result cuMemcpyHtoDAsync_v2(DevicePointer to, const void* from, size_t bytes, Stream stream) {
  if (!is_device(to, bytes)) return Result::invalid_value;
  if (is_pinned(from)) {
    return put(stream, [=] {
      std::memcpy(host(to), from, bytes);
      return Result::success;
    });
  }
  const std::string staged(static_cast<const char*>(from), bytes);
  return put(stream, [=] {
    std::memcpy(host(to), staged.data(), bytes);
    return Result::success;
  });
}
Result cuMemcpyDtoHAsync_v2(void* to, DevicePointer from, size_t bytes, Stream stream) {
  if (!is_device(from, bytes)) return Result::invalid_value;
  const Result result = put(stream, [=] {
    std::memcpy(to, host(from), bytes);
    return Result::success;
  });
  return is_pinned(to) ? result : drain(stream);
}
Result cuMemcpyDtoDAsync_v2(DevicePointer to, DevicePointer from, size_t bytes, Stream stream) {
  return put(stream, [=] {
    std::memmove(host(to), host(from), bytes);
    return Result::success;
  });
}
Result cuMemsetD8Async(DevicePointer at, unsigned char value, size_t bytes, Stream stream) {
  return put(stream, [=] {
    std::memset(host(at), value, bytes);
    return Result::success;
  });
}
Result cuMemsetD32Async(DevicePointer, unsigned, size_t, Stream) { return Result::invalid_value; }
/// A map begins with the tensor's address, and so is a pointer to fake kernels.
Result cuTensorMapEncodeTiled(TensorMap* map, TensorMapType, uint32_t rank, void* address, const uint64_t* dims,
                              const uint64_t* strides, const uint32_t* box, const uint32_t* element_strides,
                              TensorMapInterleave, TensorMapSwizzle, TensorMapL2Promotion, TensorMapFill) {
  bool valid = rank >= 1 && rank <= 5 && reinterpret_cast<uint64_t>(address) % 16 == 0;
  for (uint32_t d = 0; valid && d < rank; ++d) {
    valid = dims[d] > 0 && box[d] > 0 && box[d] <= 256 && element_strides[d] >= 1 && element_strides[d] <= 8;
    if (d + 1 < rank) valid = valid && strides[d] % 16 == 0;
  }
  if (!valid) return Result::invalid_value;
  *map = {};
  map->opaque[0] = reinterpret_cast<uint64_t>(address);
  return Result::success;
}

Result cuStreamCreate(Stream* stream, unsigned) {
  *stream = gpu().stream = new StreamTag;
  return Result::success;
}
Result cuStreamDestroy_v2(Stream stream) {
  drain(stream);
  if (gpu().stream == stream) gpu().stream = nullptr;
  delete stream;
  return Result::success;
}
Result cuStreamSynchronize(Stream stream) { return drain(stream); }
Result cuStreamWaitEvent(Stream, Event, unsigned) { return Result::success; }
Result cuStreamBeginCapture_v2(Stream stream, CaptureMode) {
  stream->capture = std::make_unique<GraphTag>();
  return Result::success;
}
Result cuStreamIsCapturing(Stream stream, CaptureStatus* status) {
  *status = stream->capture ? CaptureStatus::active : CaptureStatus::none;
  return Result::success;
}
Result cuStreamEndCapture(Stream stream, Graph* graph) {
  *graph = stream->capture.release();
  return *graph == nullptr ? Result::invalid_value : Result::success;
}
Result cuEventCreate(Event* event, unsigned flags) {
  *event = new EventTag;
  (*event)->timed = (flags & kEventDisableTiming) == 0;
  return Result::success;
}
Result cuEventDestroy_v2(Event event) {
  drain(gpu().stream);  // Waiting work may point to it.
  delete event;
  return Result::success;
}
Result cuEventRecord(Event event, Stream stream) { return record(event, stream); }
Result cuEventRecordWithFlags(Event event, Stream stream, unsigned) { return record(event, stream); }
Result cuEventQuery(Event event) { return event->done ? Result::success : Result::not_ready; }
Result cuEventSynchronize(Event event) {
  if (!event->recorded) return Result::success;
  return drain(gpu().stream, [event] { return event->done; });
}
Result cuEventElapsedTime(float* milliseconds, Event start, Event end) {
  if (!start->timed || !end->timed) return Result::invalid_value;
  if (!start->done || !end->done) return Result::not_ready;
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return Result::success;
}

Result cuGraphInstantiateWithFlags(GraphExec* exec, Graph graph, unsigned long long) {
  *exec = new GraphExecTag{graph->nodes};
  return Result::success;
}
Result cuGraphUpload(GraphExec, Stream) { return Result::success; }
Result cuGraphLaunch(GraphExec exec, Stream stream) {
  Result result = Result::success;
  for (const Work& node : exec->nodes) result = put(stream, node);
  return result;
}
Result cuGraphGetNodes(Graph graph, GraphNode*, size_t* count) {
  *count = graph->nodes.size();
  return Result::success;
}
Result cuGraphDebugDotPrint(Graph, const char*, unsigned) { return Result::success; }
Result cuGraphExecDestroy(GraphExec exec) {
  delete exec;
  return Result::success;
}
Result cuGraphDestroy(Graph graph) {
  delete graph;
  return Result::success;
}

}  // extern "C"

}  // namespace difuse::runtime::cuda
