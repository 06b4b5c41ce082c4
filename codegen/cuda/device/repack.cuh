// A filter turned: [outputs, taps, inputs] -> [inputs, taps, outputs], its taps in reverse order. Each tap is a matrix
// that is transposed, 64 x 64 elements at once through shared memory: channels run along the rows of both filters, so
// that warps read and write whole lines.
#pragma once
#include "codegen/cuda/device/vector.cuh"

namespace repack {

constexpr int kTile = 64, kThreads = 256;

/// By all threads of block number `block` of `blocks`.
template <class T>
__device__ __forceinline__ void turn(const T* from, T* to, int outputs, int taps, int inputs, int block, int blocks) {
  constexpr int kLanes = 32, kParts = kTile / kLanes, kRows = kThreads / kLanes, kRounds = kTile / kRows;
  __shared__ T tile[kTile][kTile + 1];
  const int rows = (outputs + kTile - 1) / kTile, columns = (inputs + kTile - 1) / kTile;
  const int lane = static_cast<int>(threadIdx.x) % kLanes, row = static_cast<int>(threadIdx.x) / kLanes;
#pragma unroll 1
  for (int unit = block; unit < rows * columns * taps; unit += blocks) {
    const int tap = unit % taps, part = unit / taps;
    const int input = part % columns * kTile, output = part / columns * kTile;
    T held[kRounds][kParts] = {};
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
#pragma unroll
      for (int j = 0; j < kParts; ++j) {
        const int k = output + row + i * kRows, c = input + lane + j * kLanes;
        if (k < outputs && c < inputs) held[i][j] = from[(k * taps + tap) * inputs + c];
      }
    }
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
#pragma unroll
      for (int j = 0; j < kParts; ++j) tile[row + i * kRows][lane + j * kLanes] = held[i][j];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
#pragma unroll
      for (int j = 0; j < kParts; ++j) {
        const int c = input + row + i * kRows, k = output + lane + j * kLanes;
        if (k < outputs && c < inputs) {
          to[(c * taps + taps - 1 - tap) * outputs + k] = tile[lane + j * kLanes][row + i * kRows];
        }
      }
    }
    __syncthreads();
  }
}

}  // namespace repack
