// out[m, n] = sum over k of A(m, k) B(n, k) in fp32 proper, by fused multiply-adds: what one block computes where the
// tensor cores are not accurate enough. The ring of slots, its loaders and the tile are those of gemm.cuh.
//
// Each result is one chain of fused multiply-adds, k ascending from zero, whatever the tile.
//
// A warp's 32 threads are 4 x 8, and a thread holds quads of 4 x 4 results, a warp's quads apart. So shared memory is
// read 16 bytes at a time on either side: of an MN-major operand four rows at one k, of a K-major one four k of one
// row. A thread's part is read for four k at once, and multiplied from registers.
//
// Shared memory moves 128 bytes in a cycle. Half a warp's read of 16 bytes a thread takes one cycle if it is at most
// 128 different bytes in different banks, and if threads that differ in lane bit 0 (or all that differ in bit 1) read
// the same address. Hence the lanes' order: bit 0 is no part of the row, and bit 1 none of the column.
#pragma once
#include "codegen/cuda/device/gemm.cuh"

namespace gemm {

template <Major major, int extent, int k>
using FmaOperand = SharedTile<float, major == Major::k ? extent : k, major == Major::k ? k : extent,
                              major == Major::k ? Reads::fourths : Reads::single>;

/// `rounds_*`: the operand is rounded to tf32 when it is read.
template <class Tile_, Major major_a, Major major_b, bool rounds_a = false, bool rounds_b = false>
class FmaBlock {
 public:
  using Tile = Tile_;
  using A = FmaOperand<major_a, Tile::m, Tile::k>;
  using B = FmaOperand<major_b, Tile::n, Tile::k>;
  static_assert(Tile::warp_m % 16 == 0 && Tile::warp_n % 32 == 0);

  // As in Block.
  static constexpr int run = 4;
  static constexpr int row_count = Tile::warp_m / 4, column_count = Tile::warp_n / 8;
  template <int lanes>
  static constexpr int run_count = column_count / lanes;

  __device__ __forceinline__ static int row(int i) { return first_row() + i / 4 * 16 + i % 4; }
  template <int lanes>
  __device__ __forceinline__ static int column(int j) {
    constexpr int parts = run / lanes;
    return first_column() + j / parts * 32 + j % parts * lanes;
  }
  template <int lanes>
  __device__ __forceinline__ float value(int i, int j, int l) const {
    return sums_[i][j * lanes + l];
  }

  /// As Block's.
  template <class LoadA, class LoadB, class Cursor>
  __device__ __forceinline__ void multiply(unsigned char* shared, const LoadA& a, const LoadB& b, Cursor cursor) {
#pragma unroll
    for (int i = 0; i < row_count; ++i) {
#pragma unroll
      for (int j = 0; j < column_count; ++j) sums_[i][j] = 0.0f;
    }
    for_each_slot<Tile, A, B>(shared, a, b, cursor, [&](const unsigned char* slot_a, const unsigned char* slot_b) {
#pragma unroll 1  // Otherwise the compiler reads so far ahead that its registers keep other blocks out.
      for (int k = 0; k < Tile::k; k += 4) multiply_four(slot_a, slot_b, k);
    });
  }

 private:
  __device__ __forceinline__ static unsigned bits(unsigned count, unsigned from) {
    return threadIdx.x / (1u << from) % (1u << count);
  }
  /// Lane bits 4, 1.
  __device__ __forceinline__ static int first_row() {
    return static_cast<int>(threadIdx.x / 32u / unsigned{Tile::warps_n} * Tile::warp_m + bits(1, 4) * 8 +
                            bits(1, 1) * 4);
  }
  /// Lane bits 3, 2, 0.
  __device__ __forceinline__ static int first_column() {
    return static_cast<int>(threadIdx.x / 32u % unsigned{Tile::warps_n} * Tile::warp_n + bits(2, 2) * 8 +
                            bits(1, 0) * 4);
  }

  template <bool rounds>
  __device__ __forceinline__ static Run<float, 4> four(const unsigned char* from) {
    Run<float, 4> x = *reinterpret_cast<const Run<float, 4>*>(from);
    if constexpr (rounds) {
#pragma unroll
      for (int l = 0; l < 4; ++l) x[l] = round_to_tf32(x[l]);
    }
    return x;
  }
  /// At `k` of a K-major operand's row first + i / 4 * step + i % 4, where `first` is the thread's first one.
  template <class Slot, int step>
  __device__ __forceinline__ static const unsigned char* in_row(const unsigned char* slot, int first, int i, int k) {
    // Rows are whole lines of 128 bytes, and first, i / 4 * step and i % 4 have no bit in common: offset() in such an
    // order that hardly anything is left to do for each i and k.
    static_assert(Slot::pitch == 128);
    const int more = i / 4 * step + i % 4;
    return slot + ((Slot::offset(first, 0) ^ k * 4) ^ Slot::exchange(more) * 16) + more * Slot::pitch;
  }

  /// The next four k.
  __device__ __forceinline__ void multiply_four(const unsigned char* slot_a, const unsigned char* slot_b, int k) {
    float a[4][row_count];
    if constexpr (major_a == Major::k) {
#pragma unroll
      for (int i = 0; i < row_count; ++i) {
        const Run<float, 4> x = four<rounds_a>(in_row<A, 16>(slot_a, first_row(), i, k));
#pragma unroll
        for (int l = 0; l < 4; ++l) a[l][i] = x[l];
      }
    } else {
#pragma unroll
      for (int l = 0; l < 4; ++l) {
#pragma unroll
        for (int i = 0; i < row_count; i += 4) {
          const Run<float, 4> x = four<rounds_a>(slot_a + A::offset(k + l, first_row() + i * 4));
#pragma unroll
          for (int d = 0; d < 4; ++d) a[l][i + d] = x[d];
        }
      }
    }
    if constexpr (major_b == Major::k) {
#pragma unroll
      for (int j = 0; j < column_count; ++j) {
        const Run<float, 4> b = four<rounds_b>(in_row<B, 32>(slot_b, first_column(), j, k));
#pragma unroll
        for (int l = 0; l < 4; ++l) add(j, a[l], b[l]);
      }
    } else {
#pragma unroll
      for (int l = 0; l < 4; ++l) {
#pragma unroll
        for (int j = 0; j < column_count; j += 4) {
          const Run<float, 4> b = four<rounds_b>(slot_b + B::offset(k + l, first_column() + j * 8));
#pragma unroll
          for (int d = 0; d < 4; ++d) add(j + d, a[l], b[d]);
        }
      }
    }
  }
  __device__ __forceinline__ void add(int j, const float (&a)[row_count], float b) {
#pragma unroll
    for (int i = 0; i < row_count; ++i) sums_[i][j] = fmaf(a[i], b, sums_[i][j]);
  }

  float sums_[row_count][column_count];
};

}  // namespace gemm
