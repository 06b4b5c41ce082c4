// The CUDA driver's types and functions, as far as they are used, declared here so that difuse builds without the CUDA
// toolkit. Names of functions are the library's symbols; a test compares every layout and value with cuda.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace difuse::runtime::cuda {

enum class Result : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  stub_library = 34,
  no_device = 100,
  invalid_image = 200,
  no_binary_for_gpu = 209,
  not_ready = 600,
  illegal_address = 700,
  launch_failed = 719,
  system_driver_mismatch = 803,
};

using Device = int;
using DevicePointer = unsigned long long;
using Context = struct ContextTag*;
using Library = struct LibraryTag*;
using Kernel = struct KernelTag*;
using Function = struct FunctionTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Graph = struct GraphTag*;
using GraphExec = struct GraphExecTag*;
using GraphNode = struct GraphNodeTag*;

enum class DeviceAttribute : int {
  clock_rate = 13,  ///< kHz
  multiprocessor_count = 16,
  memory_clock_rate = 36,        ///< kHz
  global_memory_bus_width = 37,  ///< Bits.
  l2_cache_size = 38,
  compute_capability_major = 75,
  compute_capability_minor = 76,
  max_shared_memory_per_block_optin = 97,
};

enum class FunctionAttribute : int {
  shared_size_bytes = 1,
  local_size_bytes = 3,
  num_regs = 4,
  max_dynamic_shared_size_bytes = 8,
  non_portable_cluster_size_allowed = 14,
};

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kEventRecordExternal = 1;
inline constexpr unsigned kMemHostAllocPortable = 1;
inline constexpr unsigned kMemHostAllocWriteCombined = 4;

enum class CaptureMode : int { global = 0, thread_local_ = 1, relaxed = 2 };
enum class CaptureStatus : int { none = 0, active = 1, invalidated = 2 };

enum class LaunchAttributeId : int {
  cluster_dimension = 4,
  programmatic_stream_serialization = 6,
};

union alignas(8) LaunchAttributeValue {
  char pad[64];
  struct {
    unsigned x, y, z;
  } cluster;
  int programmatic_stream_serialization;
};

struct LaunchAttribute {
  LaunchAttributeId id;
  char pad[4];
  LaunchAttributeValue value;
};

struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z;
  unsigned block_x, block_y, block_z;
  unsigned dynamic_shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

/// A kernel argument of type `const __grid_constant__`.
struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

enum class TensorMapType : int { u8 = 0, u32 = 2, i32 = 3, f16 = 6, f32 = 7, bf16 = 9, tf32 = 11 };
enum class TensorMapInterleave : int { none = 0 };
/// Not the numbering of a wgmma descriptor's swizzle field.
enum class TensorMapSwizzle : int { none = 0, bytes_32 = 1, bytes_64 = 2, bytes_128 = 3 };
enum class TensorMapL2Promotion : int { none = 0, bytes_64 = 1, bytes_128 = 2, bytes_256 = 3 };
enum class TensorMapFill : int { zeros = 0 };

// clang-format off
#define DIFUSE_CUDA_FUNCTIONS(X)                                                                                      \
  /* The driver and its devices. */                                                                                   \
  X(cuInit, Result(unsigned flags))                                                                                   \
  X(cuDriverGetVersion, Result(int* version))                                                                         \
  X(cuGetErrorName, Result(Result, const char**))                                                                     \
  X(cuGetErrorString, Result(Result, const char**))                                                                   \
  X(cuDeviceGetCount, Result(int*))                                                                                   \
  X(cuDeviceGet, Result(Device*, int ordinal))                                                                        \
  X(cuDeviceGetName, Result(char*, int bytes, Device))                                                                \
  X(cuDeviceGetAttribute, Result(int*, DeviceAttribute, Device))                                                      \
  X(cuDeviceTotalMem_v2, Result(size_t*, Device))                                                                     \
  X(cuDevicePrimaryCtxRetain, Result(Context*, Device))                                                               \
  X(cuDevicePrimaryCtxRelease_v2, Result(Device))                                                                     \
  X(cuCtxSetCurrent, Result(Context))                                                                                 \
  X(cuCtxSynchronize, Result())                                                                                       \
  /* Code. */                                                                                                         \
  X(cuLibraryLoadData, Result(Library*, const void* code, int* jit_options, void** jit_values, unsigned jit_count,    \
                              int* options, void** values, unsigned count))                                           \
  X(cuLibraryUnload, Result(Library))                                                                                 \
  X(cuLibraryGetKernel, Result(Kernel*, Library, const char* name))                                                   \
  X(cuKernelGetFunction, Result(Function*, Kernel))                                                                   \
  X(cuKernelGetAttribute, Result(int*, FunctionAttribute, Kernel, Device))                                            \
  X(cuKernelSetAttribute, Result(FunctionAttribute, int value, Kernel, Device))                                       \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, Result(int* blocks, Function, int threads, size_t shared_bytes))     \
  X(cuOccupancyMaxActiveClusters, Result(int* clusters, Function, const LaunchConfig*))                               \
  X(cuLaunchKernelEx, Result(const LaunchConfig*, Function, void** arguments, void** extra))                          \
  /* Memory. Sizes in bytes. */                                                                                       \
  X(cuMemGetInfo_v2, Result(size_t* free, size_t* total))                                                             \
  X(cuMemAlloc_v2, Result(DevicePointer*, size_t))                                                                    \
  X(cuMemFree_v2, Result(DevicePointer))                                                                              \
  X(cuMemHostAlloc, Result(void**, size_t, unsigned flags))                                                           \
  X(cuMemFreeHost, Result(void*))                                                                                     \
  X(cuMemcpyHtoD_v2, Result(DevicePointer, const void*, size_t))                                                      \
  X(cuMemcpyDtoH_v2, Result(void*, DevicePointer, size_t))                                                            \
  X(cuMemcpyHtoDAsync_v2, Result(DevicePointer, const void*, size_t, Stream))                                         \
  X(cuMemcpyDtoHAsync_v2, Result(void*, DevicePointer, size_t, Stream))                                               \
  X(cuMemcpyDtoDAsync_v2, Result(DevicePointer, DevicePointer, size_t, Stream))                                       \
  X(cuMemsetD8Async, Result(DevicePointer, unsigned char, size_t, Stream))                                            \
  X(cuMemsetD32Async, Result(DevicePointer, unsigned, size_t words, Stream))                                          \
  X(cuTensorMapEncodeTiled,                                                                                           \
    Result(TensorMap*, TensorMapType, uint32_t rank, void* address, const uint64_t* dims, const uint64_t* strides,    \
           const uint32_t* box, const uint32_t* element_strides, TensorMapInterleave, TensorMapSwizzle,               \
           TensorMapL2Promotion, TensorMapFill))                                                                      \
  /* Streams and events. */                                                                                           \
  X(cuStreamCreate, Result(Stream*, unsigned flags))                                                                  \
  X(cuStreamDestroy_v2, Result(Stream))                                                                               \
  X(cuStreamSynchronize, Result(Stream))                                                                              \
  X(cuStreamWaitEvent, Result(Stream, Event, unsigned flags))                                                         \
  X(cuStreamBeginCapture_v2, Result(Stream, CaptureMode))                                                             \
  X(cuStreamIsCapturing, Result(Stream, CaptureStatus*))                                                              \
  X(cuStreamEndCapture, Result(Stream, Graph*))                                                                       \
  X(cuEventCreate, Result(Event*, unsigned flags))                                                                    \
  X(cuEventDestroy_v2, Result(Event))                                                                                 \
  X(cuEventRecord, Result(Event, Stream))                                                                             \
  X(cuEventRecordWithFlags, Result(Event, Stream, unsigned flags))                                                    \
  X(cuEventQuery, Result(Event))                                                                                      \
  X(cuEventSynchronize, Result(Event))                                                                                \
  X(cuEventElapsedTime, Result(float* milliseconds, Event start, Event end))                                          \
  /* Graphs. */                                                                                                       \
  X(cuGraphInstantiateWithFlags, Result(GraphExec*, Graph, unsigned long long flags))                                 \
  X(cuGraphUpload, Result(GraphExec, Stream))                                                                         \
  X(cuGraphLaunch, Result(GraphExec, Stream))                                                                         \
  X(cuGraphGetNodes, Result(Graph, GraphNode*, size_t* count))                                                        \
  X(cuGraphDebugDotPrint, Result(Graph, const char* path, unsigned flags))                                            \
  X(cuGraphExecDestroy, Result(GraphExec))                                                                            \
  X(cuGraphDestroy, Result(Graph))
// clang-format on

/// The table: every function of the list above under its symbol's name.
struct Functions {
#define DIFUSE_CUDA_POINTER(symbol, ...)  \
  using symbol##_signature = __VA_ARGS__; \
  symbol##_signature* symbol = nullptr;  // NOLINT(bugprone-macro-parentheses)
  DIFUSE_CUDA_FUNCTIONS(DIFUSE_CUDA_POINTER)
#undef DIFUSE_CUDA_POINTER
};

}  // namespace difuse::runtime::cuda
