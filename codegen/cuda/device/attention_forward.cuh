// Attention's value: softmax(q k' / sqrt(width)) v of one block of queries. See attention.cuh.
//
// The softmax is taken online: a row's running maximum and total are in registers, and what was summed so far is scaled
// down whenever the maximum grows. Exponentials are powers of two of scores times log2(e) / sqrt(width).
#pragma once
#include "codegen/cuda/device/attention.cuh"

namespace attention {

/// Four neighbouring threads hold a row.
__device__ __forceinline__ float largest_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float sum_of_row(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

template <class P, class Tile_>
class Forward : public Places<Tile_> {
 public:
  using T = typename P::Element;
  using Source = typename P::Source;
  using Queries = SharedRows<T, Tile_::rows, Tile_::depth>;
  using Keys = SharedRows<T, Tile_::step, Tile_::depth>;
  using Values = SharedRows<T, Tile_::step, Tile_::is_wide ? Tile_::columns : Tile_::depth>;

  // Narrow: the queries stay, a piece is a step's keys and values. Wide: a step's pieces are the chunks of queries and
  // keys, then the values.
  static constexpr int chunk_bytes = Queries::bytes + Keys::bytes;
  static constexpr int slot_bytes = !Tile_::is_wide               ? Keys::bytes + Values::bytes
                                    : chunk_bytes > Values::bytes ? chunk_bytes
                                                                  : Values::bytes;
  static constexpr int owned_bytes = Tile_::is_wide ? 0 : Queries::bytes;
  static constexpr int steps = (P::length + Tile_::step - 1) / Tile_::step;
  static constexpr int step_pieces = Tile_::is_wide ? Tile_::chunks + 1 : 1;
  using Slots = Ring<Tile_::stages, slot_bytes, steps * step_pieces>;
  static constexpr int shared_bytes = owned_bytes + Slots::bytes;

  /// `q`, `k`, `v`: the head's first rows. Called by all threads, once; `shared` is a multiple of 16.
  __device__ __forceinline__ void run(unsigned char* shared, const Source* q, const Source* k, const Source* v,
                                      int first_row, int first_column, float scale_log2) {
    const auto copy_queries = [&](unsigned char* to, int column) {
      copy_rows<Queries, Tile_::threads, P::length, P::width, P::qkv_pitch, P::copy>(to, q, first_row, column);
    };
    const auto copy_keys = [&](unsigned char* to, int step, int column) {
      copy_rows<Keys, Tile_::threads, P::length, P::width, P::qkv_pitch, P::copy>(to, k, step * Tile_::step, column);
    };
    const auto copy_values = [&](unsigned char* to, int step, int column) {
      copy_rows<Values, Tile_::threads, P::length, P::width, P::qkv_pitch, P::copy>(to, v, step * Tile_::step, column);
    };
    const auto fill = [&](unsigned char* slot, int piece) {
      const int step = quotient<step_pieces>(piece), part = remainder_of<step_pieces>(piece);
      if constexpr (!Tile_::is_wide) {
        copy_keys(slot, step, 0);
        copy_values(slot + Keys::bytes, step, 0);
      } else if (part < Tile_::chunks) {
        copy_queries(slot, part * Tile_::depth);
        copy_keys(slot + Queries::bytes, step, part * Tile_::depth);
      } else {
        copy_values(slot, step, first_column);
      }
    };
    Slots slots(shared + owned_bytes);
    if constexpr (!Tile_::is_wide) copy_queries(shared, 0);
    slots.begin(fill);

    clear<m, columns>(sums_);
#pragma unroll
    for (int i = 0; i < 2 * m; ++i) {
      largest_[i] = __int_as_float(0xff800000);
      total_[i] = 0.0f;
    }
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      Scores scores;
      clear<m, keys>(scores);
      const unsigned char* values;
      if constexpr (Tile_::is_wide) {
#pragma unroll 1
        for (int chunk = 0; chunk < Tile_::chunks; ++chunk) {
          const unsigned char* const slot = slots.next(fill);
          add_row_products<Queries, Keys, m, keys>(scores, slot + Queries::offset(this->warp_row(), 0),
                                                   slot + Queries::bytes);
        }
        values = slots.next(fill);
      } else {
        const unsigned char* const slot = slots.next(fill);
        add_row_products<Queries, Keys, m, keys>(scores, shared + Queries::offset(this->warp_row(), 0), slot);
        values = slot + Keys::bytes + Values::offset(0, first_column);
      }
      if (P::length % Tile_::step != 0 && step == steps - 1) hide_missing_keys(scores);
      take_exponentials(scores, scale_log2);
      add_weighted_rows<Values, m, columns, keys>(sums_, scores, values);
    }
#pragma unroll
    for (int i = 0; i < 2 * m; ++i) {
      total_[i] = sum_of_row(total_[i]);
      scale_row(i, 1.0f / total_[i]);
    }
  }

  template <int lanes>
  __device__ __forceinline__ float value(int i, int j, int l) const {
    return this->template at<lanes, m, columns>(sums_, i, j, l);
  }
  /// The logarithm of row i's sum of exponentials.
  __device__ __forceinline__ float log_sum(int i) const { return 0.693147181f * (largest_[i] + log2f(total_[i])); }
  /// Of the threads that hold a row, one.
  __device__ __forceinline__ static bool is_first_of_row() { return threadIdx.x % 4 == 0; }

 private:
  static constexpr int m = Tile_::blocks_m, columns = Tile_::columns / 8, keys = Tile_::step / 8;
  using Scores = Sums<m, keys>;

  __device__ __forceinline__ static void hide_missing_keys(Scores& scores) {
    const int left = P::length - (steps - 1) * Tile_::step, first = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int j = 0; j < keys; ++j) {
#pragma unroll
      for (int d = 0; d < 4; ++d) {
        if (j * 8 + first + d % 2 < left) continue;
#pragma unroll
        for (int i = 0; i < m; ++i) scores[i][j][d] = __int_as_float(0xff800000);
      }
    }
  }

  /// Scores become exponentials relative to the running maximum; the sums follow it. Every step has a key that is not
  /// hidden, so that the maximum is finite where the scores are.
  __device__ __forceinline__ void take_exponentials(Scores& scores, float scale_log2) {
#pragma unroll
    for (int i = 0; i < 2 * m; ++i) {
      const int block = i / 2, half = i % 2 * 2;
      float largest = scores[block][0][half];
#pragma unroll
      for (int j = 0; j < keys; ++j) {
        largest = fmaxf(largest, fmaxf(scores[block][j][half], scores[block][j][half + 1]));
      }
      const float before = largest_[i];
      largest_[i] = fmaxf(before, largest_of_row(largest) * scale_log2);
      const float shrink = exp2f(before - largest_[i]);
      float total = 0.0f;
#pragma unroll
      for (int j = 0; j < keys; ++j) {
#pragma unroll
        for (int d = half; d < half + 2; ++d) {
          scores[block][j][d] = exp2f(fmaf(scores[block][j][d], scale_log2, -largest_[i]));
          total += scores[block][j][d];
        }
      }
      total_[i] = fmaf(total_[i], shrink, total);
      scale_row(i, shrink);
    }
  }

  __device__ __forceinline__ void scale_row(int i, float by) {
#pragma unroll
    for (int j = 0; j < columns; ++j) {
      sums_[i / 2][j][i % 2 * 2] *= by;
      sums_[i / 2][j][i % 2 * 2 + 1] *= by;
    }
  }

  Sums<m, columns> sums_;
  float largest_[2 * m], total_[2 * m];
};

}  // namespace attention
