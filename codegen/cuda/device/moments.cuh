// A strip's mean and sum of squared deviations per channel: eight columns of pixels, summed down each column, then over
// the eight columns as a fixed tree of neighbours. The mean comes first and the deviations are taken from it; squares
// of the values themselves are never summed.
#pragma once
#include "codegen/cuda/device/vector.cuh"

namespace moments {

constexpr int kColumns = 8;  ///< A strip's width.

__device__ __forceinline__ float tree(const float (&c)[kColumns]) {
  return ((c[0] + c[1]) + (c[2] + c[3])) + ((c[4] + c[5]) + (c[6] + c[7]));
}

/// The same, of a column to each of eight neighbouring threads.
__device__ __forceinline__ float tree_of_threads(float column) {
#pragma unroll
  for (int apart = 1; apart < kColumns; apart *= 2) column += __shfl_xor_sync(0xffffffffu, column, apart);
  return column;
}

/// What a strip's columns sum to, for each of its threads. Threads are strips times kColumns times `runs`, the run of
/// channels running fastest; every thread of the block calls it. `shared` is aligned to 16 bytes and holds a run for
/// each thread; it may be used again after a barrier.
template <int runs, int lanes>
__device__ __forceinline__ Run<float, lanes> strip_sum(const Run<float, lanes>& column, float* shared) {
  Run<float, lanes>* const slots = reinterpret_cast<Run<float, lanes>*>(shared);
  const int thread = static_cast<int>(threadIdx.x);
  slots[thread] = column;
  __syncthreads();
  const int first = thread / (kColumns * runs) * (kColumns * runs) + thread % runs;
  float columns[lanes][kColumns];
#pragma unroll
  for (int i = 0; i < kColumns; ++i) {
    const Run<float, lanes> other = slots[first + i * runs];
#pragma unroll
    for (int l = 0; l < lanes; ++l) columns[l][i] = other[l];
  }
  Run<float, lanes> sum;
#pragma unroll
  for (int l = 0; l < lanes; ++l) sum[l] = tree(columns[l]);
  return sum;
}

}  // namespace moments
