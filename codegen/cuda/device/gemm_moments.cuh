// The statistics of a convolution's result (moments.cuh) from a block's tile, whose rows are whole strips of pixels
// (Pixel, gemm_operands.cuh). The tile is laid down where the ring of slots was.
#pragma once
#include "codegen/cuda/device/gemm_operands.cuh"
#include "codegen/cuda/device/moments.cuh"

namespace gemm {

/// The tile in shared memory, for reading four channels of eight rows at once: they lie in different banks.
template <class Tile>
struct Staged {
  static constexpr int pitch = Tile::n + 4, bytes = Tile::m * pitch * 4;

  __device__ __forceinline__ static int offset(int row, int column) { return row * pitch + column; }
};

/// `store(strip of the tile, column, mean, m2)` for each of the tile's strips, `tall` pixels high, and each of its
/// columns; a warp does four columns at once. Called by all threads of the block once the tile is laid down.
template <class Tile, int tall, class Store>
__device__ __forceinline__ void for_each_moments(const float* staged, const Store& store) {
  using moments::kColumns;
  constexpr int rows = kColumns * tall, quads = Tile::n / 4;
  static_assert(Tile::m % rows == 0 && Tile::n % 4 == 0);
  const int column = static_cast<int>(threadIdx.x % unsigned{kColumns});
#pragma unroll 1
  for (int item = static_cast<int>(threadIdx.x / 32u); item < Tile::m / rows * quads; item += Tile::threads / 32) {
    const int strip = quotient<quads>(item);
    const int channel = remainder_of<quads>(item) * 4 + static_cast<int>(threadIdx.x % 32u) / kColumns;
    const float* const from = staged + Staged<Tile>::offset(strip * rows + column, channel);
    float value[tall];
#pragma unroll
    for (int r = 0; r < tall; ++r) value[r] = from[Staged<Tile>::offset(r * kColumns, 0)];
    float down = value[0];
#pragma unroll
    for (int r = 1; r < tall; ++r) down += value[r];
    const float mean = moments::tree_of_threads(down) / static_cast<float>(rows);
    down = 0.0f;
#pragma unroll
    for (int r = 0; r < tall; ++r) down += (value[r] - mean) * (value[r] - mean);
    const float m2 = moments::tree_of_threads(down);
    if (column == 0) store(strip, channel, mean, m2);
  }
}

}  // namespace gemm
