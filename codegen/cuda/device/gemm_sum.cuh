// The second half of a contraction whose k is split over blocks: each split has written its partial result, and their
// sum, in one fixed order, is the value.
#pragma once
#include "codegen/cuda/device/vector.cuh"

namespace gemm {

/// A block of `runs` x `parts` threads sums `runs` runs of `lanes` elements. Of the `splits` partial tensors, `size`
/// elements each, thread (run, part) adds a range, in order; then the parts are added, in order. The sum is that of the
/// threads with part 0. `from`: the first partial tensor at the thread's run. Called by all threads.
template <int lanes, int parts, int runs>
__device__ __forceinline__ Run<f32, lanes> sum_of_splits(const f32* from, long long size, int splits, bool valid) {
  __shared__ Run<f32, lanes> shared[parts][runs];
  const int at = static_cast<int>(threadIdx.x % unsigned{runs}), part = static_cast<int>(threadIdx.x / unsigned{runs});
  const int each = (splits + parts - 1) / parts;
  const int first = part * each, end = first + each < splits ? first + each : splits;
  Run<f32, lanes> sum = {};
  if (valid) {
    constexpr int batch = 8;  // Loads at once, of what is left as well: one by one they would take as long each.
#pragma unroll 1
    for (int i = first; i < end; i += batch) {
      Run<f32, lanes> more[batch];
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        if (i + b < end) more[b] = load_run<lanes>(from + (i + b) * size);
      }
#pragma unroll
      for (int b = 0; b < batch; ++b) {
        if (i + b < end) {
#pragma unroll
          for (int l = 0; l < lanes; ++l) sum[l] += more[b][l];
        }
      }
    }
  }
  if constexpr (parts == 1) return sum;
  shared[part][at] = sum;
  __syncthreads();
  if (part == 0) {
#pragma unroll
    for (int p = 1; p < parts; ++p) {
#pragma unroll
      for (int l = 0; l < lanes; ++l) sum[l] += shared[p][at][l];
    }
  }
  return sum;
}

}  // namespace gemm
