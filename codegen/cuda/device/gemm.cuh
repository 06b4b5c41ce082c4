// out[m, n] = sum over k of A(m, k) B(n, k): what one block computes, on the tensor cores. Products that are to be as
// accurate as fp32 are not for them; gemm_fma.cuh has those.
//
// A block owns a tile of m x n results; each of its warps a part of it, in registers. Shared memory is a ring of slots,
// each a tile.k deep piece of A and of B, filled by the operands' loaders (gemm_operands.cuh) with asynchronous copies
// some slots ahead of the one that is multiplied. An operand lies in a slot as it lies in memory, so that copies stay
// whole: K-major (a row of the tile has k running fastest) or MN-major (m or n runs fastest); what the multiply
// instruction wants is made while reading: ldmatrix, transposing for MN-major 16-bit operands, and plain loads for
// MN-major 32-bit ones, which ldmatrix cannot transpose.
//
// Reads touch eight rows of a slot at once, which must lie in different banks. Rows are a multiple of 64 bytes apart,
// so the 16-byte chunks of a row are exchanged by an exclusive or with a few bits of the row's number. Rows that are
// read by words, four at once, are 32 bytes further apart instead.
//
// Where B is K-major, its rows are dealt out to the instruction's columns such that a thread ends up with 8
// consecutive columns of the result instead of 2: stores and the operands of an epilogue then move 16 bytes at a time.
//
// The order of the sum of one result is k ascending, 16 (32-bit operands: 8) to an instruction, whatever the tile.
#pragma once
#include "codegen/cuda/device/vector.cuh"

namespace gemm {

enum class Major { k, mn };

/// How the tensor cores multiply.
enum class Product { bf16, f16, tf32 };

template <int m_, int n_, int k_, int warps_m_, int warps_n_, int stages_>
struct Tile {
  static constexpr int m = m_, n = n_, k = k_, warps_m = warps_m_, warps_n = warps_n_, stages = stages_;
  static constexpr int threads = 32 * warps_m * warps_n, warp_m = m / warps_m, warp_n = n / warps_n;
};

/// Which rows of a slot are read at once: eight consecutive ones; 0, 1, 8, 9, 16, 17, 24, 25 and the like; every fourth
/// one; four consecutive ones, a word per thread; or one alone.
enum class Reads { consecutive, spread, fourths, words, single };

template <class T, int rows_, int columns_, Reads reads>
struct SharedTile {
  using Element = T;
  static constexpr int rows = rows_, columns = columns_, row_bytes = columns * static_cast<int>(sizeof(T));
  static constexpr int pitch = row_bytes + (reads == Reads::words ? 32 : 0), bytes = rows * pitch;
  static_assert(row_bytes % 128 == 0 || (row_bytes == 64 && reads != Reads::words));

  __device__ __forceinline__ static int exchange(int row) {
    if constexpr (reads == Reads::words || reads == Reads::single) {
      return 0;
    } else if constexpr (reads == Reads::fourths) {
      return (row >> 2) & 7;
    } else if constexpr (reads == Reads::spread) {
      return pitch == 64 ? (row >> 3) & 3 : ((row >> 2) & 6) | (row & 1);
    } else {
      return pitch == 64 ? (row >> 1) & 3 : row & 7;
    }
  }
  /// In bytes.
  __device__ __forceinline__ static int offset(int row, int column) {
    const int byte = column * static_cast<int>(sizeof(T));
    return row * pitch + (((byte >> 4) ^ exchange(row)) << 4) + (byte & 15);
  }
};

template <class T, Major major, int extent, int k, bool is_b>
struct OperandTile {
  static constexpr Reads reads = major == Major::k ? (is_b ? Reads::spread : Reads::consecutive)
                                                   : (sizeof(T) == 2 ? Reads::consecutive : Reads::words);
  using Type = SharedTile<T, major == Major::k ? extent : k, major == Major::k ? k : extent, reads>;
};

/// Walks through the ring: `use(slot of A, slot of B)` for each of the slots that the cursor counts, in order.
/// `shared`: the ring, at a multiple of 128 bytes. Called by all threads, once.
template <class Tile, class A, class B, class LoadA, class LoadB, class Cursor, class Use>
__device__ __forceinline__ void for_each_slot(unsigned char* shared, const LoadA& a, const LoadB& b, Cursor cursor,
                                              const Use& use) {
  constexpr int slot_bytes = A::bytes + B::bytes;
  const int slots = cursor.slots(Tile::k);
  int filled = 0, fill_at = 0, read_at = 0;
  const auto fill = [&] {
    if (filled < slots) {
      unsigned char* slot = shared + fill_at * slot_bytes;
      a.load(slot, cursor);
      b.load(slot + A::bytes, cursor);
      cursor.advance(Tile::k);
      ++filled;
      fill_at = fill_at + 1 == Tile::stages ? 0 : fill_at + 1;
    }
    copy_async_commit();  // Empty at the end, so that the count of groups in flight stays the same.
  };
#pragma unroll 1
  for (int i = 0; i < Tile::stages - 1; ++i) fill();
#pragma unroll 1
  for (int i = 0; i < slots; ++i) {
    copy_async_wait<Tile::stages - 2>();
    __syncthreads();  // Everyone's copies into slot i have arrived, and everyone has read slot i - 1, filled next.
    // A prologue would transform slot i here, in place, followed by another barrier.
    fill();
    const unsigned char* slot = shared + read_at * slot_bytes;
    use(slot, slot + A::bytes);
    read_at = read_at + 1 == Tile::stages ? 0 : read_at + 1;
  }
}

/// `rounds_*`: the operand is rounded to tf32 when it is read.
template <class Tile_, class T, Product product, Major major_a, Major major_b, bool rounds_a = false,
          bool rounds_b = false>
class Block {
 public:
  using Tile = Tile_;
  using A = typename OperandTile<T, major_a, Tile::m, Tile::k, false>::Type;
  using B = typename OperandTile<T, major_b, Tile::n, Tile::k, true>::Type;
  static constexpr int blocks_m = Tile::warp_m / 16, blocks_n = Tile::warp_n / 8;
  static constexpr int step = 32 / static_cast<int>(sizeof(T)), steps = Tile::k / step;  ///< k of an instruction.
  static_assert(Tile::warp_m % 16 == 0 && Tile::warp_n % (major_b == Major::k ? 32 : 16) == 0);

  // The results that a thread holds: `row_count` rows of the block's tile, and of each of them, `run_count<lanes>` runs
  // of `lanes` consecutive columns (lanes divides `run`).
  static constexpr int run = major_b == Major::k ? 8 : 2;
  static constexpr int row_count = 2 * blocks_m;
  template <int lanes>
  static constexpr int run_count = 2 * blocks_n / lanes;

  __device__ __forceinline__ static int row(int i) { return warp_row() + i / 2 * 16 + i % 2 * 8 + lane() / 4; }
  template <int lanes>
  __device__ __forceinline__ static int column(int j) {
    constexpr int parts = run / lanes;
    return warp_column() + j / parts * 4 * run + lane() % 4 * run + j % parts * lanes;
  }
  template <int lanes>
  __device__ __forceinline__ float value(int i, int j, int l) const {
    constexpr int parts = run / lanes;
    const int at = j % parts * lanes + l;
    return sums_[i / 2][j / parts * (run / 2) + at / 2][i % 2 * 2 + at % 2];
  }

  /// `shared`: the ring, at a multiple of 128 bytes. `cursor` says which k a slot holds. Called by all threads, once.
  template <class LoadA, class LoadB, class Cursor>
  __device__ __forceinline__ void multiply(unsigned char* shared, const LoadA& a, const LoadB& b, Cursor cursor) {
#pragma unroll
    for (int i = 0; i < blocks_m; ++i) {
#pragma unroll
      for (int j = 0; j < blocks_n; ++j) {
#pragma unroll
        for (int d = 0; d < 4; ++d) sums_[i][j][d] = 0.0f;
      }
    }
    for_each_slot<Tile, A, B>(shared, a, b, cursor, [&](const unsigned char* slot_a, const unsigned char* slot_b) {
      multiply_slot(slot_a, slot_b);
    });
  }

 private:
  using Sums = float[blocks_m][blocks_n][4];
  struct Fragments {
    unsigned a[blocks_m][4], b[blocks_n][2];
  };

  // Unsigned division by a power of two is a shift.
  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x % 32u); }
  __device__ __forceinline__ static int warp_row() {
    return static_cast<int>(threadIdx.x / 32u / unsigned{Tile::warps_n}) * Tile::warp_m;
  }
  __device__ __forceinline__ static int warp_column() {
    return static_cast<int>(threadIdx.x / 32u % unsigned{Tile::warps_n}) * Tile::warp_n;
  }

  __device__ __forceinline__ static unsigned word(const unsigned char* slot, int offset) {
    return *reinterpret_cast<const unsigned*>(slot + offset);
  }

  /// Rows [row, row + 16) of A at the slot's k step `s`.
  __device__ __forceinline__ static void read_a(unsigned (&to)[4], const unsigned char* slot, int row, int s) {
    if constexpr (major_a == Major::k) {
      ldmatrix_x4(to, slot + A::offset(row + lane() % 16, s * step + lane() / 16 * (step / 2)));
    } else if constexpr (sizeof(T) == 2) {
      ldmatrix_x4_trans(to, slot + A::offset(s * step + lane() / 16 * 8 + lane() % 8, row + lane() / 8 % 2 * 8));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[i] = word(slot, A::offset(s * step + i / 2 * 4 + lane() % 4, row + i % 2 * 8 + lane() / 4));
      }
    }
  }
  /// Two blocks of 8 columns of B, numbers `block` (even) and block + 1 of the warp's.
  __device__ __forceinline__ static void read_b(unsigned (&first)[2], unsigned (&second)[2], const unsigned char* slot,
                                                int block, int s) {
    const int matrix = lane() / 8, at = lane() % 8;
    unsigned r[4];
    if constexpr (major_b == Major::k) {
      const int n = block / 4 * 32 + at / 2 * 8 + (block % 4 + matrix / 2) * 2 + at % 2;
      ldmatrix_x4(r, slot + B::offset(warp_column() + n, s * step + matrix % 2 * (step / 2)));
    } else if constexpr (sizeof(T) == 2) {
      ldmatrix_x4_trans(r, slot + B::offset(s * step + matrix % 2 * 8 + at, warp_column() + (block + matrix / 2) * 8));
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        r[i] =
            word(slot, B::offset(s * step + i % 2 * 4 + lane() % 4, warp_column() + (block + i / 2) * 8 + lane() / 4));
      }
    }
    first[0] = r[0], first[1] = r[1], second[0] = r[2], second[1] = r[3];
  }

  __device__ __forceinline__ static void read(Fragments& to, const unsigned char* a, const unsigned char* b, int s) {
#pragma unroll
    for (int i = 0; i < blocks_m; ++i) read_a(to.a[i], a, warp_row() + i * 16, s);
#pragma unroll
    for (int j = 0; j < blocks_n; j += 2) read_b(to.b[j], to.b[j + 1], b, j, s);
  }

  __device__ __forceinline__ static void add_products(Sums& sums, const Fragments& f) {
    if constexpr (product == Product::bf16 || product == Product::f16) {
#pragma unroll
      for (int i = 0; i < blocks_m; ++i) {
#pragma unroll
        for (int j = 0; j < blocks_n; ++j) {
          if constexpr (product == Product::bf16) {
            mma_bf16(sums[i][j], f.a[i], f.b[j]);
          } else {
            mma_f16(sums[i][j], f.a[i], f.b[j]);
          }
        }
      }
    } else {
      add_words(sums, f);
    }
  }

  template <bool rounds, int count, int words>
  __device__ __forceinline__ static void as_tf32(float (&to)[count][words], const unsigned (&from)[count][words]) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
#pragma unroll
      for (int w = 0; w < words; ++w) {
        const float x = __uint_as_float(from[i][w]);
        to[i][w] = rounds ? round_to_tf32(x) : x;
      }
    }
  }

  __device__ __forceinline__ static void add_words(Sums& sums, const Fragments& f) {
    float a[blocks_m][4], b[blocks_n][2];
    as_tf32<rounds_a>(a, f.a);
    as_tf32<rounds_b>(b, f.b);
#pragma unroll
    for (int i = 0; i < blocks_m; ++i) {
#pragma unroll
      for (int j = 0; j < blocks_n; ++j) mma_tf32(sums[i][j], a[i], b[j]);
    }
  }

  /// The next step's fragments are on their way while a step is multiplied.
  __device__ __forceinline__ void multiply_slot(const unsigned char* a, const unsigned char* b) {
    Fragments f[2];
    read(f[0], a, b, 0);
#pragma unroll
    for (int s = 0; s < steps; ++s) {
      if (s + 1 < steps) read(f[(s + 1) % 2], a, b, s + 1);
      add_products(sums_, f[s % 2]);
    }
  }

  Sums sums_;
};

}  // namespace gemm
