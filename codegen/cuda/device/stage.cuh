// What all threads of a block copy into shared memory before they go on: the whole of it is in flight at once.
#pragma once
#include "codegen/cuda/device/ptx.cuh"

namespace stage {

/// `elements` floats, a multiple of `lanes`, which is 4 or 1; `to` and `from` are at multiples of so many floats. They
/// are there for all threads after stage::wait.
template <int elements, int lanes, int threads>
__device__ __forceinline__ void copy(float* to, const float* from) {
  // How often is known, so that no code is there for more.
  constexpr int rounds = (elements + threads * lanes - 1) / (threads * lanes);
#pragma unroll(rounds < 16 ? rounds : 8)
  for (int round = 0; round < rounds; ++round) {
    const int i = (static_cast<int>(threadIdx.x) + round * threads) * lanes;
    if (i >= elements) break;
    if constexpr (lanes == 4) {
      copy_async_16(to + i, from + i, true);
    } else {
      copy_async_4(to + i, from + i, true);
    }
  }
}

__device__ __forceinline__ void wait() {
  copy_async_commit();
  copy_async_wait<0>();
  __syncthreads();
}

}  // namespace stage
