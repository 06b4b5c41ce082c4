// Sums and maxima of many values in an order that depends on shapes alone: each thread combines its own values in index
// order, then threads combine theirs in fixed trees (neighbours at half the distance each time). No atomics.
#pragma once
#include "codegen/cuda/device/vector.cuh"

namespace reduce {

struct Sum {
  __device__ __forceinline__ static float start() { return 0.0f; }
  __device__ __forceinline__ static float both(float a, float b) { return a + b; }
};
/// A NaN among the values is passed over.
struct Max {
  __device__ __forceinline__ static float start() { return __int_as_float(0xff800000); }
  __device__ __forceinline__ static float both(float a, float b) { return b > a ? b : a; }
};

template <class T>
__device__ __forceinline__ T lesser(T a, T b) {
  return a < b ? a : b;
}

template <class Combine, int lanes>
__device__ __forceinline__ Run<float, lanes> start_run() {
  Run<float, lanes> run;
#pragma unroll
  for (int l = 0; l < lanes; ++l) run[l] = Combine::start();
  return run;
}

/// One value of a thread's lanes.
template <class Combine, int lanes>
__device__ __forceinline__ float combine_lanes(Run<float, lanes> value) {
#pragma unroll
  for (int half = lanes / 2; half > 0; half /= 2) {
#pragma unroll
    for (int l = 0; l < half; ++l) value[l] = Combine::both(value[l], value[l + half]);
  }
  return value[0];
}

/// Threads are `rows` (a power of two) times `columns`, the column running faster; a column's first row gets what all
/// of its rows have. Every thread of the block calls it. `shared` is aligned to 16 bytes and holds rows * columns runs;
/// it may be used again after a barrier. Rows that are left in one warp exchange registers, in the same order.
template <class Combine, int columns, int rows, int lanes>
__device__ __forceinline__ void combine_rows(Run<float, lanes>& value, float* shared) {
  Run<float, lanes>* const slots = reinterpret_cast<Run<float, lanes>*>(shared);
  const int row = static_cast<int>(threadIdx.x) / columns;
  constexpr bool whole_warps = columns * rows % 32 == 0;
#pragma unroll
  for (int half = rows / 2; half > 0; half /= 2) {
    if (whole_warps && 2 * half * columns <= 32) {
#pragma unroll
      for (int l = 0; l < lanes; ++l) {
        value[l] = Combine::both(value[l], __shfl_down_sync(0xffffffffu, value[l], half * columns));
      }
      continue;
    }
    if (row >= half && row < 2 * half) slots[threadIdx.x] = value;
    __syncthreads();
    if (row < half) {
      const Run<float, lanes> other = slots[threadIdx.x + half * columns];
#pragma unroll
      for (int l = 0; l < lanes; ++l) value[l] = Combine::both(value[l], other[l]);
    }
  }
}

/// The value of `sharers` (a power of two, at most 32) neighbouring threads, for each of them. Every lane of the warp
/// calls it.
template <class Combine, int sharers>
__device__ __forceinline__ float combine_neighbours(float value) {
#pragma unroll
  for (int half = sharers / 2; half > 0; half /= 2) {
    value = Combine::both(value, __shfl_xor_sync(0xffffffffu, value, half));
  }
  return value;
}

/// The value of a block of `threads` (a power of two times 32), for its thread 0. `shared` holds a float for each warp
/// and may be used again after a barrier.
template <class Combine, int threads>
__device__ __forceinline__ float combine_block(float value, float* shared) {
  value = combine_neighbours<Combine, 32>(value);
  if constexpr (threads > 32) {
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    if (lane == 0) shared[warp] = value;
    __syncthreads();
    if (warp == 0) value = combine_neighbours<Combine, 32>(lane < threads / 32 ? shared[lane] : Combine::start());
  }
  return value;
}

/// Of `count` values, a power of two: each of the first half gets its partner of the second, and so on. They stay in
/// registers, which a loop over the halves would not see to.
template <int count>
__device__ __forceinline__ float sum_of_halves(float* value) {
  if constexpr (count == 1) {
    return value[0];
  } else {
#pragma unroll
    for (int i = 0; i < count / 2; ++i) value[i] += value[i + count / 2];
    return sum_of_halves<count / 2>(value);
  }
}

/// The sum of x[t * step] over t < terms, in the order in which finish adds them with so many rows of threads.
template <int terms, int rows>
__device__ __forceinline__ float sum_of_parts(const float* x, int step) {
  float part[rows] = {};
  for (int first = 0; first < terms; first += rows) {
#pragma unroll
    for (int r = 0; r < rows; ++r) {
      if (first + r < terms) part[r] += x[(first + r) * step];
    }
  }
  return sum_of_halves<rows>(part);
}

/// Combines what kernels left in parts: to[m] of x[first(m) + step(t)] over t < terms, m < results. A block holds
/// `columns` results; its other threads share the terms, and `shared` holds a float for each of them. Columns and the
/// rest of the block are powers of two.
template <class Combine, class index_t, class First, class Step>
__device__ __forceinline__ void finish(const float* x, float* to, index_t results, index_t terms, int columns,
                                       float* shared, const First& first, const Step& step) {
  const int column = static_cast<int>(threadIdx.x) % columns, row = static_cast<int>(threadIdx.x) / columns;
  const int rows = static_cast<int>(blockDim.x) / columns;
  const index_t m = static_cast<index_t>(blockIdx.x) * columns + column;
  const float* const from = x + first(lesser(m, results - 1));
  float value = Combine::start();
  constexpr int at_once = 4;  // loads in flight; past the end the last term is read again and left out
  for (index_t t = row; t < terms; t += rows * at_once) {
    float term[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) term[i] = from[step(lesser<index_t>(t + i * rows, terms - 1))];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      value = Combine::both(value, t + i * rows < terms ? term[i] : Combine::start());
    }
  }
  for (int half = rows / 2; half > 0; half /= 2) {
    if (row >= half && row < 2 * half) shared[threadIdx.x] = value;
    __syncthreads();
    if (row < half) value = Combine::both(value, shared[threadIdx.x + half * columns]);
  }
  if (row == 0 && m < results) to[m] = value;
}

}  // namespace reduce
