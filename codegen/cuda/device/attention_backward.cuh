// Attention's gradient. With P the probabilities, recomputed from the rows' log-sum-exp, and dO the result's gradient:
//   dP = dO V',  dS = P (dP - delta),  dQ = dS K / sqrt(width),  dK = dS' Q / sqrt(width),  dV = P' dO,
// where delta is the rows' sum of dO times O. One kernel gives delta, one owns queries and gives dQ, one owns keys and
// gives dK and dV (its scores are transposed: rows are keys). See attention.cuh.
#pragma once
#include "codegen/cuda/device/attention.cuh"
#include "codegen/cuda/device/reduce.cuh"

namespace attention {

/// delta[(image * heads + head) * length + token]; out and dout are rows of `width`, (image, token, head). `sharers`
/// threads share a row.
template <int length, int heads, int width, int vec, int sharers, class Out, class Gradient>
__device__ __forceinline__ void write_delta(const Out* out, const Gradient* dout, float* delta, long long rows) {
  const int sharer = static_cast<int>(threadIdx.x) % sharers;
  const long long row = (static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x) / sharers;
  float sum = 0.0f;
  if (row < rows) {
#pragma unroll 4
    for (int c = sharer * vec; c < width; c += sharers * vec) {
      const Run<Out, vec> x = load_run<vec>(out + row * width + c);
      const Run<Gradient, vec> dx = load_run<vec>(dout + row * width + c);
#pragma unroll
      for (int l = 0; l < vec; ++l) sum = fmaf(widen(x[l]), widen(dx[l]), sum);
    }
  }
  sum = reduce::combine_neighbours<reduce::Sum, sharers>(sum);
  if (row >= rows || sharer != 0) return;
  const long long token = remainder_of<length>(quotient<heads>(row)), image = quotient<length * heads>(row);
  delta[(image * heads + remainder_of<heads>(row)) * length + token] = sum;
}

/// One head's rows and what the forward left.
template <class P>
struct Operands {
  const typename P::Source *q, *k, *v;
  const typename P::Gradient* dout;
  const float *log_sum, *delta;
};

/// What the two kernels share. Owned and streamed are (q, dout) and (k, v) when queries are owned, and the other way
/// round when keys are: the scores are the products of the first ones, dP those of the second ones.
template <class P, class Tile_, bool owns_keys>
class Gradient : public Places<Tile_> {
 public:
  using T = typename P::Element;
  using Owned = SharedRows<T, Tile_::rows, Tile_::depth>;
  using Streamed = SharedRows<T, Tile_::step, Tile_::depth>;
  using Summed = SharedRows<T, Tile_::step, Tile_::is_wide ? Tile_::columns : Tile_::depth>;

  // Narrow: the owned rows stay, a piece is a step's streamed rows. Wide: a step's pieces are the chunks of both, then
  // the columns to be summed. Where keys are owned, the last piece has the queries' log-sum-exp and delta, too.
  static constexpr int chunk_bytes = 2 * (Owned::bytes + Streamed::bytes);
  static constexpr int summed_bytes = (owns_keys ? 2 : 1) * Summed::bytes;
  static constexpr int tile_bytes = !Tile_::is_wide              ? 2 * Streamed::bytes
                                    : chunk_bytes > summed_bytes ? chunk_bytes
                                                                 : summed_bytes;
  static constexpr int slot_bytes = tile_bytes + (owns_keys ? 2 * Tile_::step * 4 : 0);
  static constexpr int owned_bytes = Tile_::is_wide ? 0 : 2 * Owned::bytes;
  static constexpr int steps = (P::length + Tile_::step - 1) / Tile_::step;
  static constexpr int step_pieces = Tile_::is_wide ? Tile_::chunks + 1 : 1;
  using Slots = Ring<Tile_::stages, slot_bytes, steps * step_pieces>;
  static constexpr int shared_bytes = owned_bytes + Slots::bytes;

 protected:
  static constexpr int m = Tile_::blocks_m, columns = Tile_::columns / 8, streamed = Tile_::step / 8;
  static constexpr float kLog2E = 1.44269504f;
  using Scores = Sums<m, streamed>;

  template <class To>
  __device__ __forceinline__ static void copy_first(bool of_keys, unsigned char* to, const Operands<P>& from, int row,
                                                    int column) {
    copy_rows<To, Tile_::threads, P::length, P::width, P::qkv_pitch, P::copy>(to, of_keys ? from.k : from.q, row,
                                                                              column);
  }
  template <class To, bool of_keys>
  __device__ __forceinline__ static void copy_second(unsigned char* to, const Operands<P>& from, int row, int column) {
    if constexpr (of_keys) {
      copy_rows<To, Tile_::threads, P::length, P::width, P::qkv_pitch, P::copy>(to, from.v, row, column);
    } else {
      copy_rows<To, Tile_::threads, P::length, P::width, P::out_pitch, P::gradient_copy>(to, from.dout, row, column);
    }
  }
  __device__ __forceinline__ static void copy_pair_owned(unsigned char* to, const Operands<P>& from, int row,
                                                         int column) {
    copy_first<Owned>(owns_keys, to, from, row, column);
    copy_second<Owned, owns_keys>(to + Owned::bytes, from, row, column);
  }
  __device__ __forceinline__ static void copy_pair_streamed(unsigned char* to, const Operands<P>& from, int row,
                                                            int column) {
    copy_first<Streamed>(!owns_keys, to, from, row, column);
    copy_second<Streamed, !owns_keys>(to + Streamed::bytes, from, row, column);
  }
  /// For a step of queries: log-sum-exp, then delta.
  __device__ __forceinline__ static void copy_statistics(unsigned char* slot, const Operands<P>& from, int row) {
    for (int item = static_cast<int>(threadIdx.x); item < 2 * Tile_::step; item += Tile_::threads) {
      const float* const source = item < Tile_::step ? from.log_sum : from.delta;
      const int token = row + remainder_of<Tile_::step>(item);
      const bool valid = token < P::length;
      copy_async_4(slot + tile_bytes + item * 4, source + (valid ? token : 0), valid);
    }
  }

  /// Walks through the streamed rows. `use(step, scores, dp, slot)` gets a step's products and the slot that holds the
  /// rows to be summed.
  template <class Use>
  __device__ __forceinline__ static void walk(unsigned char* shared, const Operands<P>& from, int first_row,
                                              int first_column, const Use& use) {
    const auto fill = [&](unsigned char* slot, int piece) {
      const int row = quotient<step_pieces>(piece) * Tile_::step, part = remainder_of<step_pieces>(piece);
      if constexpr (!Tile_::is_wide) {
        copy_pair_streamed(slot, from, row, 0);
      } else if (part < Tile_::chunks) {
        copy_pair_owned(slot, from, first_row, part * Tile_::depth);
        copy_pair_streamed(slot + 2 * Owned::bytes, from, row, part * Tile_::depth);
      } else {
        copy_first<Summed>(!owns_keys, slot, from, row, first_column);
        if constexpr (owns_keys) copy_second<Summed, !owns_keys>(slot + Summed::bytes, from, row, first_column);
      }
      if constexpr (owns_keys) {
        if (part == step_pieces - 1) copy_statistics(slot, from, row);
      }
    };
    Slots slots(shared + owned_bytes);
    if constexpr (!Tile_::is_wide) copy_pair_owned(shared, from, first_row, 0);
    slots.begin(fill);
    const int warp_at = Owned::offset(Gradient::warp_row(), 0);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      Scores scores, dp;
      clear<m, streamed>(scores);
      clear<m, streamed>(dp);
      const unsigned char* slot;
      if constexpr (Tile_::is_wide) {
#pragma unroll 1
        for (int chunk = 0; chunk < Tile_::chunks; ++chunk) {
          slot = slots.next(fill);
          const unsigned char* const other = slot + 2 * Owned::bytes;
          add_row_products<Owned, Streamed, m, streamed>(scores, slot + warp_at, other);
          add_row_products<Owned, Streamed, m, streamed>(dp, slot + Owned::bytes + warp_at, other + Streamed::bytes);
        }
        slot = slots.next(fill);
      } else {
        slot = slots.next(fill);
        add_row_products<Owned, Streamed, m, streamed>(scores, shared + warp_at, slot);
        add_row_products<Owned, Streamed, m, streamed>(dp, shared + Owned::bytes + warp_at, slot + Streamed::bytes);
      }
      use(step, scores, dp, slot);
    }
  }
  /// Where the columns to be summed begin in a row of a slot.
  __device__ __forceinline__ static int summed_column(int first_column) {
    return Tile_::is_wide ? 0 : Summed::offset(0, first_column);
  }
};

/// dQ of a block of queries.
template <class P, class Tile_>
class QueryGradient : public Gradient<P, Tile_, false> {
  using Base = Gradient<P, Tile_, false>;
  using typename Base::Scores;
  using typename Base::Summed;
  using Base::columns, Base::m, Base::streamed;

 public:
  /// Called by all threads, once; `shared` is a multiple of 16.
  __device__ __forceinline__ void run(unsigned char* shared, const Operands<P>& from, int first_row, int first_column,
                                      float scale_log2) {
    float log_sum[2 * m], delta[2 * m];
#pragma unroll
    for (int i = 0; i < 2 * m; ++i) {
      const int token = first_row + Base::row(i);
      log_sum[i] = token < P::length ? from.log_sum[token] * Base::kLog2E : 0.0f;
      delta[i] = token < P::length ? from.delta[token] : 0.0f;
    }
    clear<m, columns>(sums_);
    Base::walk(shared, from, first_row, first_column,
               [&](int step, Scores& scores, const Scores& dp, const unsigned char* slot) {
                 const int left = P::length - step * Tile_::step, first = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
                 for (int i = 0; i < m; ++i) {
#pragma unroll
                   for (int j = 0; j < streamed; ++j) {
#pragma unroll
                     for (int d = 0; d < 4; ++d) {
                       const int row = i * 2 + d / 2;
                       const float p = exp2f(fmaf(scores[i][j][d], scale_log2, -log_sum[row]));
                       scores[i][j][d] = p * (dp[i][j][d] - delta[row]);
                       // Of a missing key, p may be infinite.
                       if (P::length % Tile_::step != 0 && j * 8 + first + d % 2 >= left) scores[i][j][d] = 0.0f;
                     }
                   }
                 }
                 add_weighted_rows<Summed, m, columns, streamed>(sums_, scores,
                                                                 slot + Base::summed_column(first_column));
               });
  }

  template <int lanes>
  __device__ __forceinline__ float value(int i, int j, int l) const {
    return this->template at<lanes, m, columns>(sums_, i, j, l);
  }

 private:
  Sums<m, columns> sums_;
};

/// dK and dV of a block of keys.
template <class P, class Tile_>
class KeyGradient : public Gradient<P, Tile_, true> {
  using Base = Gradient<P, Tile_, true>;
  using typename Base::Scores;
  using typename Base::Summed;
  using Base::columns, Base::m, Base::streamed;

 public:
  __device__ __forceinline__ void run(unsigned char* shared, const Operands<P>& from, int first_row, int first_column,
                                      float scale_log2) {
    clear<m, columns>(keys_);
    clear<m, columns>(values_);
    // A missing query's rows, log-sum-exp and delta are zeros: its p is 1, and what that multiplies is zero.
    Base::walk(shared, from, first_row, first_column,
               [&](int, Scores& scores, Scores& dp, const unsigned char* slot) {
                 const float* const log_sum = reinterpret_cast<const float*>(slot + Base::tile_bytes);
                 const float* const delta = log_sum + Tile_::step;
#pragma unroll
                 for (int j = 0; j < streamed; ++j) {
#pragma unroll
                   for (int e = 0; e < 2; ++e) {
                     const int query = j * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + e;
                     const float row_log_sum = log_sum[query] * Base::kLog2E, row_delta = delta[query];
#pragma unroll
                     for (int i = 0; i < m; ++i) {
#pragma unroll
                       for (int d = e; d < 4; d += 2) {
                         const float p = exp2f(fmaf(scores[i][j][d], scale_log2, -row_log_sum));
                         scores[i][j][d] = p;
                         dp[i][j][d] = p * (dp[i][j][d] - row_delta);
                       }
                     }
                   }
                 }
                 const int column = Base::summed_column(first_column);
                 const int second = Tile_::is_wide ? Summed::bytes : Base::Streamed::bytes;
                 add_weighted_rows<Summed, m, columns, streamed>(values_, scores, slot + second + column);
                 add_weighted_rows<Summed, m, columns, streamed>(keys_, dp, slot + column);
               });
  }

  /// Part 1 is dK, 2 is dV, as in the projection.
  template <int lanes>
  __device__ __forceinline__ float value(int part, int i, int j, int l) const {
    const float of_keys = this->template at<lanes, m, columns>(keys_, i, j, l);
    const float of_values = this->template at<lanes, m, columns>(values_, i, j, l);
    return part == 1 ? of_keys : of_values;
  }

 private:
  Sums<m, columns> keys_, values_;
};

}  // namespace attention
