// The second half of a contraction whose k is split over blocks: each split has written its partial result, and their
// sum, in one fixed order, is the value.
#pragma once
#include "codegen/cuda/device/vector.cuh"

namespace gemm {

/// The terms that one of `parts` threads adds.
struct Terms {
  int first, end;
};
__device__ __forceinline__ Terms own_terms(int splits, int parts, int part) {
  const int each = (splits + parts - 1) / parts, first = part * each;
  return {first, first + each < splits ? first + each : splits};
}

/// A block of `runs` x `parts` threads sums `runs` runs of `lanes` elements. Of the `splits` partial tensors, `size`
/// elements each, thread (run, part) adds a range, in order; then the parts are added, in order. The sum is that of the
/// threads with part 0. `from`: the first partial tensor at the thread's run. Called by all threads.
template <int lanes, int parts, int runs>
__device__ __forceinline__ Run<f32, lanes> sum_of_splits(const f32* from, long long size, int splits, bool valid) {
  __shared__ Run<f32, lanes> shared[parts][runs];
  const int at = static_cast<int>(threadIdx.x % unsigned{runs}), part = static_cast<int>(threadIdx.x / unsigned{runs});
  const auto [first, end] = own_terms(splits, parts, part);
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

/// The same of the first `own` of `each` runs of every thread, which lie `step` elements from one another, into `sums`.
/// A block of `threads` has threads / parts runs of that kind.
template <int lanes, int each, int threads>
__device__ __forceinline__ void sums_of_splits(Run<f32, lanes> (&sums)[each], const f32* from, int step, long long size,
                                               int splits, int own, int parts) {
  const int runs = threads / parts, part = static_cast<int>(threadIdx.x) / runs;
  const auto [first, end] = own_terms(splits, parts, part);
#pragma unroll
  for (int e = 0; e < each; ++e) sums[e] = {};
  const auto load = [&](Run<f32, lanes> (&terms)[each], const f32* term) {
#pragma unroll
    for (int e = 0; e < each; ++e) {
      if (e < own) terms[e] = load_run<lanes>(term + e * step);
    }
  };
  const auto add = [&](const Run<f32, lanes> (&terms)[each]) {
#pragma unroll
    for (int e = 0; e < each; ++e) {
      if (e >= own) continue;
#pragma unroll
      for (int l = 0; l < lanes; ++l) sums[e][l] += terms[e][l];
    }
  };
  if (own > 0) {
    const f32* term = from + first * size;
    int left = end - first;
#pragma unroll 1
    for (; left >= 2; left -= 2, term += 2 * size) {
      Run<f32, lanes> a[each], b[each];
      load(a, term);
      load(b, term + size);
      add(a);
      add(b);
    }
    if (left > 0) {
      Run<f32, lanes> a[each];
      load(a, term);
      add(a);
    }
  }
  if (parts == 1) return;
  __shared__ Run<f32, lanes> shared[each][threads];
#pragma unroll
  for (int e = 0; e < each; ++e) shared[e][threadIdx.x] = sums[e];
  __syncthreads();
  if (part != 0) return;
#pragma unroll 1
  for (int other = runs + static_cast<int>(threadIdx.x); other < threads; other += runs) {
#pragma unroll
    for (int e = 0; e < each; ++e) {
#pragma unroll
      for (int l = 0; l < lanes; ++l) sums[e][l] += shared[e][other][l];
    }
  }
}

}  // namespace gemm
