// Our own declarations against the CUDA toolkit's header, where the build found one: a wrong size or value here would
// otherwise show only as a crash on a GPU.
#include <gtest/gtest.h>

#include "runtime/cuda/types.h"

#if DIFUSE_HAVE_CUDA_H

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

// The header gives the old name to the new version, whose arguments are the same.
#undef cuEventElapsedTime
extern "C" decltype(cuEventElapsedTime_v2) cuEventElapsedTime;

namespace difuse::runtime {
namespace {

template <typename T>
struct Holder {
  T value;
};

/// Whether two types are passed alike: both pointers, or both of one size.
template <typename A, typename B>
constexpr bool kPassedAlike = std::is_pointer_v<A> == std::is_pointer_v<B> && sizeof(Holder<A>) == sizeof(Holder<B>);

template <typename Ours, typename Theirs>
constexpr bool kSameCall = false;
template <typename R, typename... A, typename S, typename... B>
constexpr bool kSameCall<R(A...), S(B...)> = [] {
  if constexpr (sizeof...(A) == sizeof...(B)) return kPassedAlike<R, S> && (... && kPassedAlike<A, B>);
  return false;
}();

#define DIFUSE_CHECK_CALL(symbol, ...) \
  static_assert(kSameCall<cuda::Functions::symbol##_signature, decltype(::symbol)>, #symbol);
DIFUSE_CUDA_FUNCTIONS(DIFUSE_CHECK_CALL)

#define DIFUSE_CHECK_LAYOUT(ours, theirs) \
  static_assert(sizeof(ours) == sizeof(theirs) && alignof(ours) == alignof(theirs))
#define DIFUSE_CHECK_MEMBER(ours, member, theirs, their_member)             \
  static_assert(offsetof(ours, member) == offsetof(theirs, their_member) && \
                sizeof(Holder<decltype(ours::member)>) == sizeof(Holder<decltype(theirs::their_member)>))
DIFUSE_CHECK_LAYOUT(cuda::DevicePointer, CUdeviceptr);
static_assert(sizeof(cuda::TensorMap) ==
              sizeof(CUtensorMap));  // The driver asks for 64-byte alignment; newer headers give 128.
DIFUSE_CHECK_LAYOUT(cuda::LaunchAttributeValue, CUlaunchAttributeValue);
DIFUSE_CHECK_MEMBER(cuda::LaunchAttributeValue, cluster, CUlaunchAttributeValue, clusterDim);
DIFUSE_CHECK_MEMBER(cuda::LaunchAttributeValue, programmatic_stream_serialization, CUlaunchAttributeValue,
                    programmaticStreamSerializationAllowed);
DIFUSE_CHECK_LAYOUT(cuda::LaunchAttribute, CUlaunchAttribute);
DIFUSE_CHECK_MEMBER(cuda::LaunchAttribute, id, CUlaunchAttribute, id);
DIFUSE_CHECK_MEMBER(cuda::LaunchAttribute, value, CUlaunchAttribute, value);
DIFUSE_CHECK_LAYOUT(cuda::LaunchConfig, CUlaunchConfig);
DIFUSE_CHECK_MEMBER(cuda::LaunchConfig, grid_x, CUlaunchConfig, gridDimX);
DIFUSE_CHECK_MEMBER(cuda::LaunchConfig, grid_z, CUlaunchConfig, gridDimZ);
DIFUSE_CHECK_MEMBER(cuda::LaunchConfig, block_x, CUlaunchConfig, blockDimX);
DIFUSE_CHECK_MEMBER(cuda::LaunchConfig, block_z, CUlaunchConfig, blockDimZ);
DIFUSE_CHECK_MEMBER(cuda::LaunchConfig, dynamic_shared_bytes, CUlaunchConfig, sharedMemBytes);
DIFUSE_CHECK_MEMBER(cuda::LaunchConfig, stream, CUlaunchConfig, hStream);
DIFUSE_CHECK_MEMBER(cuda::LaunchConfig, attributes, CUlaunchConfig, attrs);
DIFUSE_CHECK_MEMBER(cuda::LaunchConfig, attribute_count, CUlaunchConfig, numAttrs);

TEST(CudaTypes, ValuesAreTheHeaders) {
  const auto same = [](auto ours, auto theirs) { return static_cast<int64_t>(ours) == static_cast<int64_t>(theirs); };
#define DIFUSE_EXPECT_SAME(ours, theirs) EXPECT_TRUE(same(cuda::ours, theirs)) << #theirs
  DIFUSE_EXPECT_SAME(Result::success, CUDA_SUCCESS);
  DIFUSE_EXPECT_SAME(Result::invalid_value, CUDA_ERROR_INVALID_VALUE);
  DIFUSE_EXPECT_SAME(Result::out_of_memory, CUDA_ERROR_OUT_OF_MEMORY);
  DIFUSE_EXPECT_SAME(Result::stub_library, CUDA_ERROR_STUB_LIBRARY);
  DIFUSE_EXPECT_SAME(Result::no_device, CUDA_ERROR_NO_DEVICE);
  DIFUSE_EXPECT_SAME(Result::invalid_image, CUDA_ERROR_INVALID_IMAGE);
  DIFUSE_EXPECT_SAME(Result::no_binary_for_gpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
  DIFUSE_EXPECT_SAME(Result::not_ready, CUDA_ERROR_NOT_READY);
  DIFUSE_EXPECT_SAME(Result::illegal_address, CUDA_ERROR_ILLEGAL_ADDRESS);
  DIFUSE_EXPECT_SAME(Result::launch_failed, CUDA_ERROR_LAUNCH_FAILED);
  DIFUSE_EXPECT_SAME(Result::system_driver_mismatch, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);

  DIFUSE_EXPECT_SAME(DeviceAttribute::clock_rate, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
  DIFUSE_EXPECT_SAME(DeviceAttribute::multiprocessor_count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  DIFUSE_EXPECT_SAME(DeviceAttribute::memory_clock_rate, CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
  DIFUSE_EXPECT_SAME(DeviceAttribute::global_memory_bus_width, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
  DIFUSE_EXPECT_SAME(DeviceAttribute::l2_cache_size, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  DIFUSE_EXPECT_SAME(DeviceAttribute::compute_capability_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  DIFUSE_EXPECT_SAME(DeviceAttribute::compute_capability_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  DIFUSE_EXPECT_SAME(DeviceAttribute::max_shared_memory_per_block_optin,
                     CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);

  DIFUSE_EXPECT_SAME(FunctionAttribute::shared_size_bytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
  DIFUSE_EXPECT_SAME(FunctionAttribute::local_size_bytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
  DIFUSE_EXPECT_SAME(FunctionAttribute::num_regs, CU_FUNC_ATTRIBUTE_NUM_REGS);
  DIFUSE_EXPECT_SAME(FunctionAttribute::max_dynamic_shared_size_bytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
  DIFUSE_EXPECT_SAME(FunctionAttribute::non_portable_cluster_size_allowed,
                     CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED);

  DIFUSE_EXPECT_SAME(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
  DIFUSE_EXPECT_SAME(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
  DIFUSE_EXPECT_SAME(kEventRecordExternal, CU_EVENT_RECORD_EXTERNAL);
  DIFUSE_EXPECT_SAME(kMemHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE);
  DIFUSE_EXPECT_SAME(kMemHostAllocWriteCombined, CU_MEMHOSTALLOC_WRITECOMBINED);
  DIFUSE_EXPECT_SAME(CaptureMode::global, CU_STREAM_CAPTURE_MODE_GLOBAL);
  DIFUSE_EXPECT_SAME(CaptureMode::thread_local_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  DIFUSE_EXPECT_SAME(CaptureMode::relaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
  DIFUSE_EXPECT_SAME(CaptureStatus::none, CU_STREAM_CAPTURE_STATUS_NONE);
  DIFUSE_EXPECT_SAME(CaptureStatus::active, CU_STREAM_CAPTURE_STATUS_ACTIVE);
  DIFUSE_EXPECT_SAME(CaptureStatus::invalidated, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
  DIFUSE_EXPECT_SAME(LaunchAttributeId::cluster_dimension, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
  DIFUSE_EXPECT_SAME(LaunchAttributeId::programmatic_stream_serialization,
                     CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);

  DIFUSE_EXPECT_SAME(TensorMapType::u8, CU_TENSOR_MAP_DATA_TYPE_UINT8);
  DIFUSE_EXPECT_SAME(TensorMapType::u32, CU_TENSOR_MAP_DATA_TYPE_UINT32);
  DIFUSE_EXPECT_SAME(TensorMapType::i32, CU_TENSOR_MAP_DATA_TYPE_INT32);
  DIFUSE_EXPECT_SAME(TensorMapType::f16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
  DIFUSE_EXPECT_SAME(TensorMapType::f32, CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
  DIFUSE_EXPECT_SAME(TensorMapType::bf16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
  DIFUSE_EXPECT_SAME(TensorMapType::tf32, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32);
  DIFUSE_EXPECT_SAME(TensorMapInterleave::none, CU_TENSOR_MAP_INTERLEAVE_NONE);
  DIFUSE_EXPECT_SAME(TensorMapSwizzle::none, CU_TENSOR_MAP_SWIZZLE_NONE);
  DIFUSE_EXPECT_SAME(TensorMapSwizzle::bytes_32, CU_TENSOR_MAP_SWIZZLE_32B);
  DIFUSE_EXPECT_SAME(TensorMapSwizzle::bytes_64, CU_TENSOR_MAP_SWIZZLE_64B);
  DIFUSE_EXPECT_SAME(TensorMapSwizzle::bytes_128, CU_TENSOR_MAP_SWIZZLE_128B);
  DIFUSE_EXPECT_SAME(TensorMapL2Promotion::none, CU_TENSOR_MAP_L2_PROMOTION_NONE);
  DIFUSE_EXPECT_SAME(TensorMapL2Promotion::bytes_64, CU_TENSOR_MAP_L2_PROMOTION_L2_64B);
  DIFUSE_EXPECT_SAME(TensorMapL2Promotion::bytes_128, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  DIFUSE_EXPECT_SAME(TensorMapL2Promotion::bytes_256, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  DIFUSE_EXPECT_SAME(TensorMapFill::zeros, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

}  // namespace
}  // namespace difuse::runtime

#endif
