// Softmax attention, flash style: what the forward and the backward kernels share.
//
// Everything is one scheme. A block owns some rows (queries, or keys in the gradient of keys and values) of one head of
// one image and walks through the other rows, the streamed ones, a step of them at a time. In a step each warp
// multiplies its owned rows with the streamed rows (add_row_products), which gives the scores of the step in registers,
// turns them into weights, and adds the streamed rows of another matrix under these weights to its sums
// (add_weighted_rows). So scores and probabilities exist in registers only.
//
// Operands are read straight from the projection's rows. In shared memory a head's width is padded with zeros to what
// an instruction takes, and rows past the end are zeros. Owned rows stay there if the whole width fits (a narrow head);
// otherwise (a wide head) the width of both sides is streamed in chunks for the scores, and the streamed rows' columns
// once more for the sums. The columns of the result may be dealt out to several blocks, each of which computes the
// scores anew.
//
// 16-bit operands: products are exact and summed in fp32, softmax is fp32; the weights (probabilities, and the scores'
// gradients) are rounded to the operands' type for the second product.
// Operands rounded to tf32: the same, but for the weights, which keep their bits: each is multiplied as the sum of two
// tf32 numbers.
// 32-bit operands: both products are chains of fused multiply-adds in fp32 proper, since the tensor cores cut their
// sums off. A thread holds the same results; the weights of its rows' other columns come from its neighbours.
//
// The order of every sum is streamed rows ascending, and width ascending, in the tensor cores' steps. How the rows and
// columns are dealt out to blocks and warps changes no bit; the step does, since the running maximum moves with it.
#pragma once
#include "codegen/cuda/device/vector.cuh"

namespace attention {

/// A float that was rounded to tf32.
struct tf32 {
  float x;
};
template <class T>
inline constexpr bool is_chain = false;  ///< Products are chains of multiply-adds.
template <>
inline constexpr bool is_chain<float> = true;

/// One head's problem. `Source` is how q, k and v are stored, `Gradient` the result's gradient; they are multiplied as
/// `Element`. Copies to shared memory take so many elements at once; 0: one, converted.
template <class Element_, class Source_, class Gradient_, int length_, int width_, int heads_, int copy_,
          int gradient_copy_>
struct Problem {
  using Element = Element_;
  using Source = Source_;
  using Gradient = Gradient_;
  static constexpr int length = length_, width = width_, copy = copy_, gradient_copy = gradient_copy_;
  static constexpr int qkv_pitch = 3 * heads_ * width, out_pitch = heads_ * width;  ///< Elements from row to row.
};

/// A block owns `rows`; every warp 16 * blocks_m of them. `columns` of the result are summed. `depth` is what is in
/// shared memory of a row's width at once: all of it in a narrow head (chunks = 1).
template <int warps_, int blocks_m_, int step_, int columns_, int depth_, int chunks_, int stages_>
struct Tile {
  static constexpr int warps = warps_, blocks_m = blocks_m_, step = step_, columns = columns_, depth = depth_;
  static constexpr int chunks = chunks_, stages = stages_;
  static constexpr int threads = 32 * warps, warp_rows = 16 * blocks_m, rows = warp_rows * warps;
  static constexpr bool is_wide = chunks > 1;
};

/// Rows in shared memory. The pitch is an odd number of 16-byte chunks, so that eight consecutive rows, and every
/// second of eight rows, lie in different banks.
template <class T, int rows_, int columns_>
struct SharedRows {
  using Element = T;
  static constexpr int rows = rows_, columns = columns_;
  static constexpr int pitch = (columns * static_cast<int>(sizeof(T)) / 16 | 1) * 16, bytes = rows * pitch;
  static_assert(columns * sizeof(T) % 32 == 0 && rows % 16 == 0);

  __device__ __forceinline__ static int offset(int row, int column) {
    return row * pitch + column * static_cast<int>(sizeof(T));
  }
};

/// Copies rows [first_row, + To::rows) and columns [first_column, + To::columns) of a matrix of length x width elements
/// into shared memory, zeros where there are none. What can be copied asynchronously is.
template <class To, int threads, int length, int width, int pitch, int copy, class S>
__device__ __forceinline__ void copy_rows(unsigned char* to, const S* from, int first_row, int first_column) {
  using T = typename To::Element;
  constexpr int vec = copy == 0 ? 1 : copy, bytes = copy * static_cast<int>(sizeof(S));
  constexpr int in_row = To::columns / vec, count = To::rows * in_row;
#pragma unroll 4
  for (int item = static_cast<int>(threadIdx.x); item < count; item += threads) {
    const int row = quotient<in_row>(item), column = remainder_of<in_row>(item) * vec;
    const bool valid = first_row + row < length && first_column + column < width;
    const S* const source = from + (valid ? (first_row + row) * pitch + first_column + column : 0);
    unsigned char* const target = to + To::offset(row, column);
    if constexpr (bytes == 16) {
      copy_async_16(target, source, valid);
    } else if constexpr (bytes == 8) {
      copy_async_8(target, source, valid);
    } else if constexpr (bytes == 4) {
      copy_async_4(target, source, valid);
    } else if constexpr (copy == 0) {
      *reinterpret_cast<T*>(target) = narrow<T>(valid ? widen(*source) : 0.0f);
    } else {
      *reinterpret_cast<S*>(target) = valid ? *source : S{};
    }
  }
}

/// Slots of shared memory that are filled `stages` - 1 pieces ahead of the one that is read.
template <int stages, int slot_bytes, int pieces>
class Ring {
 public:
  static constexpr int bytes = stages * slot_bytes;

  __device__ __forceinline__ explicit Ring(unsigned char* start) : start_(start) {}

  /// `fill(slot, piece)` issues a piece's copies. Copies issued before belong to the first piece.
  template <class Fill>
  __device__ __forceinline__ void begin(const Fill& fill) {
#pragma unroll 1
    for (int i = 0; i < kAhead; ++i) fill_next(fill);
  }
  /// The next piece, for all threads; nobody reads the one before any more.
  template <class Fill>
  __device__ __forceinline__ const unsigned char* next(const Fill& fill) {
    copy_async_wait<kAhead - 1>();
    __syncthreads();
    if constexpr (stages > 1) fill_next(fill);
    const unsigned char* const slot = start_ + read_at_ * slot_bytes;
    read_at_ = read_at_ + 1 == stages ? 0 : read_at_ + 1;
    return slot;
  }

 private:
  static constexpr int kAhead = stages > 1 ? stages - 1 : 1;
  static_assert(stages > 1 || pieces == 1);

  template <class Fill>
  __device__ __forceinline__ void fill_next(const Fill& fill) {
    if (filled_ < pieces) {
      fill(start_ + fill_at_ * slot_bytes, filled_);
      ++filled_;
      fill_at_ = fill_at_ + 1 == stages ? 0 : fill_at_ + 1;
    }
    copy_async_commit();  // Empty at the end, so that the count of groups in flight stays the same.
  }

  unsigned char* start_;
  int filled_ = 0, fill_at_ = 0, read_at_ = 0;
};

/// A warp's 16 * m x 8 * n results, as the tensor cores' instruction holds them: of block (i, j), elements 0 and 1 are
/// row lane / 4, columns 2 (lane % 4) and + 1; 2 and 3 the same of row lane / 4 + 8.
template <int m, int n>
using Sums = float[m][n][4];

template <int m, int n>
__device__ __forceinline__ void clear(Sums<m, n>& sums) {
#pragma unroll
  for (int i = 0; i < m; ++i) {
#pragma unroll
    for (int j = 0; j < n; ++j) {
#pragma unroll
      for (int d = 0; d < 4; ++d) sums[i][j][d] = 0.0f;
    }
  }
}

__device__ __forceinline__ void add_product(bf16, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  mma_bf16(d, a, b);
}
__device__ __forceinline__ void add_product(f16, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  mma_f16(d, a, b);
}
__device__ __forceinline__ void add_product(tf32, float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const float rows[4] = {__uint_as_float(a[0]), __uint_as_float(a[1]), __uint_as_float(a[2]), __uint_as_float(a[3])};
  const float columns[2] = {__uint_as_float(b[0]), __uint_as_float(b[1])};
  mma_tf32(d, rows, columns);
}
__device__ __forceinline__ unsigned pack(bf16, float low, float high) { return pack_bf16(low, high); }
__device__ __forceinline__ unsigned pack(f16, float low, float high) { return pack_f16(low, high); }

/// sums += A B', where A is m blocks of 16 rows and B n blocks of 8 rows, both K-major in shared memory.
template <class A, class B, int m, int n>
__device__ __forceinline__ void add_row_products(Sums<m, n>& sums, const unsigned char* a, const unsigned char* b) {
  using T = typename A::Element;
  static_assert(n % 2 == 0 && A::columns == B::columns);
  constexpr int depth = A::columns;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (!is_chain<T>) {
    constexpr int chunk = 16 / static_cast<int>(sizeof(T));  // Of a row; two of them are an instruction's depth.
    const int matrix = lane / 8, at = lane % 8;
    const unsigned char* const lane_a = a + A::offset(lane % 16, lane / 16 * chunk);
    const unsigned char* const lane_b = b + B::offset(matrix / 2 * 8 + at, matrix % 2 * chunk);
#pragma unroll
    for (int k = 0; k < depth; k += 2 * chunk) {
      unsigned rows[m][4];
#pragma unroll
      for (int i = 0; i < m; ++i) ldmatrix_x4(rows[i], lane_a + A::offset(i * 16, k));
#pragma unroll
      for (int j = 0; j < n; j += 2) {
        unsigned r[4];
        ldmatrix_x4(r, lane_b + B::offset(j * 8, k));
        const unsigned first[2] = {r[0], r[1]}, second[2] = {r[2], r[3]};
#pragma unroll
        for (int i = 0; i < m; ++i) {
          add_product(T{}, sums[i][j], rows[i], first);
          add_product(T{}, sums[i][j + 1], rows[i], second);
        }
      }
    }
  } else {
    const unsigned char* const lane_a = a + A::offset(lane / 4, 0);
    const unsigned char* const lane_b = b + B::offset(lane % 4 * 2, 0);
#pragma unroll 1  // Otherwise more is read ahead than there are registers for.
    for (int k = 0; k < depth; k += 4) {
      Run<float, 4> rows[2 * m];
#pragma unroll
      for (int i = 0; i < 2 * m; ++i) rows[i] = *reinterpret_cast<const Run<float, 4>*>(lane_a + A::offset(i * 8, k));
#pragma unroll
      for (int j = 0; j < 2 * n; ++j) {
        const auto column = *reinterpret_cast<const Run<float, 4>*>(lane_b + B::offset(j / 2 * 8 + j % 2, k));
#pragma unroll
        for (int l = 0; l < 4; ++l) {
#pragma unroll
          for (int i = 0; i < 2 * m; ++i) {
            float& sum = sums[i / 2][j / 2][i % 2 * 2 + j % 2];
            sum = fmaf(rows[i][l], column[l], sum);
          }
        }
      }
    }
  }
}

/// sums += W B, where W is what the warp holds (m blocks of 16 rows times k blocks of 8) and B 8 * k rows in shared
/// memory, of whose columns the first n blocks of 8 are used.
template <class B, int m, int n, int k>
__device__ __forceinline__ void add_weighted_rows(Sums<m, n>& sums, const Sums<m, k>& weights, const unsigned char* b) {
  using T = typename B::Element;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if constexpr (sizeof(T) == 2) {
    static_assert(n % 2 == 0 && k % 2 == 0);
    const int matrix = lane / 8, at = lane % 8;
    const unsigned char* const lane_b = b + B::offset(matrix % 2 * 8 + at, matrix / 2 * 8);
#pragma unroll
    for (int s = 0; s < k; s += 2) {
      unsigned rows[m][4];
#pragma unroll
      for (int i = 0; i < m; ++i) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          rows[i][w] = pack(T{}, weights[i][s + w / 2][w % 2 * 2], weights[i][s + w / 2][w % 2 * 2 + 1]);
        }
      }
#pragma unroll
      for (int j = 0; j < n; j += 2) {
        unsigned r[4];
        ldmatrix_x4_trans(r, lane_b + B::offset(s * 8, j * 8));
        const unsigned first[2] = {r[0], r[1]}, second[2] = {r[2], r[3]};
#pragma unroll
        for (int i = 0; i < m; ++i) {
          add_product(T{}, sums[i][j], rows[i], first);
          add_product(T{}, sums[i][j + 1], rows[i], second);
        }
      }
    }
  } else if constexpr (!is_chain<T>) {
    // A thread's weights of a row are neighbours: the instruction gets the even columns of eight before the odd ones.
    const unsigned char* const lane_b = b + B::offset(lane % 4 * 2, lane / 4);
#pragma unroll
    for (int s = 0; s < k; ++s) {
      float high[m][4], low[m][4];
#pragma unroll
      for (int i = 0; i < m; ++i) {
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          const float weight = weights[i][s][w % 2 * 2 + w / 2];
          high[i][w] = __uint_as_float(__float_as_uint(weight) & 0xffffe000u);
          low[i][w] = weight - high[i][w];
        }
      }
#pragma unroll
      for (int j = 0; j < n; ++j) {
        float rows[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) rows[e] = *reinterpret_cast<const float*>(lane_b + B::offset(s * 8 + e, j * 8));
#pragma unroll
        for (int i = 0; i < m; ++i) {
          mma_tf32(sums[i][j], low[i], rows);
          mma_tf32(sums[i][j], high[i], rows);
        }
      }
    }
  } else {
    const unsigned char* const lane_b = b + B::offset(0, lane % 4 * 2);
#pragma unroll
    for (int s = 0; s < k; ++s) {
#pragma unroll 1  // Four times the instructions would not fit their cache.
      for (int pair = 0; pair < 4; ++pair) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float weight[2 * m];
#pragma unroll
          for (int i = 0; i < 2 * m; ++i) {
            weight[i] = __shfl_sync(0xffffffffu, weights[i / 2][s][i % 2 * 2 + e], pair, 4);
          }
#pragma unroll
          for (int j = 0; j < n; ++j) {
            const auto x = *reinterpret_cast<const Run<float, 2>*>(lane_b + B::offset(s * 8 + pair * 2 + e, j * 8));
#pragma unroll
            for (int d = 0; d < 4 * m; ++d) {
              float& sum = sums[d / 4][j][d % 4];
              sum = fmaf(weight[d / 2], x[d % 2], sum);
            }
          }
        }
      }
    }
  }
}

/// The rows and columns, inside a block's, of the results that a thread holds: `row_count` rows, and of each of them,
/// `run_count<lanes>` runs of `lanes` (1 or 2) consecutive columns.
template <class Tile_>
struct Places {
  static constexpr int row_count = 2 * Tile_::blocks_m;
  template <int lanes>
  static constexpr int run_count = Tile_::columns / 4 / lanes;

  __device__ __forceinline__ static int warp_row() { return static_cast<int>(threadIdx.x) / 32 * Tile_::warp_rows; }
  __device__ __forceinline__ static int row(int i) {
    return warp_row() + i / 2 * 16 + i % 2 * 8 + static_cast<int>(threadIdx.x) % 32 / 4;
  }
  template <int lanes>
  __device__ __forceinline__ static int column(int j) {
    constexpr int parts = 2 / lanes;
    return j / parts * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + j % parts;
  }
  /// The value at (row i, run j, lane l).
  template <int lanes, int m, int n>
  __device__ __forceinline__ static float at(const Sums<m, n>& sums, int i, int j, int l) {
    constexpr int parts = 2 / lanes;
    return sums[i / 2][j / parts][i % 2 * 2 + j % parts + l];
  }
};

}  // namespace attention
