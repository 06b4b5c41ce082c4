// Attention and its gradient on Hopper's warpgroup products, where a head's rows fit a block's shared memory: bf16
// operands of up to 64 channels a head, sums in fp32.
//
// Rows lie in shared memory as 32 or 64 channels, zeros where a head is narrower, in blocks of 64 tokens, zeros past
// the last token. Each warpgroup owns one block of 64 tokens, the rows of its products.
//
// Value: a warpgroup owns queries and walks through the keys. The softmax is taken online.
//
// Gradient: with P the probabilities, recomputed from the rows' log-sum-exp, and dO the result's gradient,
//   dP = dO V',  dS = P (dP - delta),  dQ = dS K / sqrt(width),  dK = dS' Q / sqrt(width),  dV = P' dO,
// where delta is the rows' sum of dO times O. One block of threads has a whole head of an image. First each warpgroup
// owns keys and walks through the queries: scores and dP are transposed, and become, rounded to bf16, the register
// operand of dV and dK. dS is laid down in shared memory besides; after all warpgroups have passed, each owns queries
// and makes dQ from it. So scores and exponentials are computed once, and nothing is added by two threads. Where that
// block would have a processor to itself, two blocks have half of the keys each; each sends the other one its share of
// dQ of half of the queries.
//
// The order of every sum is tokens ascending, and width ascending, in the tensor cores' steps; of two blocks, each half
// of the tokens by itself: dK and dV begin with the half whose dQ the other block stores.
#pragma once
#include "codegen/cuda/device/ptx_sm90.cuh"
#include "codegen/cuda/device/reduce.cuh"
#include "codegen/cuda/device/vector.cuh"

namespace attention_wgmma {

/// `heads` of `width` channels, `length` tokens.
template <int length_, int width_, int heads_>
struct Problem {
  static constexpr int length = length_, width = width_;
  static constexpr int qkv_pitch = 3 * heads_ * width, out_pitch = heads_ * width;  ///< Elements from row to row.
  static constexpr int channels = width <= 32 ? 32 : 64, row_bytes = 2 * channels;  ///< Of a row in shared memory.
  static constexpr int blocks = (length + 63) / 64, block_bytes = 64 * row_bytes;
  static constexpr int sums = channels / 2;  ///< Of a thread, for 64 rows.
  static_assert(width % 8 == 0 && width <= 64);
};

/// Pieces of 16 bytes of `blocks` blocks, dealt out to a block of threads in rounds.
template <class P, int blocks, int threads>
struct Pieces {
  static constexpr int in_row = P::row_bytes / 16, rounds = 64 * blocks * in_row / threads;
  static_assert(64 * blocks * in_row % threads == 0);

  __device__ __forceinline__ static int row(int round) {
    return quotient<in_row>(round * threads + static_cast<int>(threadIdx.x));
  }
  __device__ __forceinline__ static int channel() { return remainder_of<in_row>(static_cast<int>(threadIdx.x)) * 8; }
  /// Where the piece lies in shared memory.
  __device__ __forceinline__ static int place(int round) {
    const int at = row(round) * P::row_bytes + channel() * 2;
    return at ^ (at >> 3 & (P::row_bytes - 16));
  }
};

/// Copies blocks into shared memory, from token `first` on.
template <class P, int pitch, int blocks, int threads>
__device__ __forceinline__ void copy_blocks(unsigned char* to, const bf16* from, int first) {
  using Own = Pieces<P, blocks, threads>;
#pragma unroll
  for (int i = 0; i < Own::rounds; ++i) {
    const int token = first + Own::row(i);
    const bool valid = token < P::length && Own::channel() < P::width;
    copy_async_16(to + Own::place(i), from + (valid ? token * pitch + Own::channel() : 0), valid);
  }
}

/// Rows `first` and after it of a matrix in shared memory, as an operand of products.
template <class P>
__device__ __forceinline__ unsigned long long rows_from(const unsigned char* matrix, int first) {
  return matrix_descriptor<P::row_bytes>(matrix + first * P::row_bytes, 8 * P::row_bytes);
}

/// Run `i` of a thread's sums: row lane / 4 + i % 2 * 8 of its warp's 16, from column run_column(i) on. By all threads:
/// neighbouring lanes exchange pairs, so that each has four consecutive columns instead of twice two.
template <int sums>
__device__ __forceinline__ Run<float, 4> run_of(const float (&d)[sums], int i) {
  const bool odd = threadIdx.x % 2 != 0;
  const float* low = &d[i / 2 * 8 + i % 2 * 2];
  const float* high = low + 4;
  const float a = __shfl_xor_sync(~0u, odd ? low[0] : high[0], 1);
  const float b = __shfl_xor_sync(~0u, odd ? low[1] : high[1], 1);
  return odd ? Run<float, 4>{a, b, high[0], high[1]} : Run<float, 4>{low[0], low[1], a, b};
}
__device__ __forceinline__ int run_column(int i) {
  return i / 2 * 16 + static_cast<int>(threadIdx.x) % 2 * 8 + static_cast<int>(threadIdx.x) / 2 % 2 * 4;
}
/// Inside the warpgroup's 64.
__device__ __forceinline__ int run_row(int i) {
  return static_cast<int>(threadIdx.x) / 32 % 4 * 16 + static_cast<int>(threadIdx.x) % 32 / 4 + i % 2 * 8;
}

template <int count>
__device__ __forceinline__ void clear(float (&d)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) d[i] = 0.0f;
}

/// Starts d = 64 rows of `a` times rows of `b`.
template <class P, int sums>
__device__ __forceinline__ void start_row_products(float (&d)[sums], unsigned long long a, unsigned long long b) {
  multiply_fresh_registers(d);
  multiply_fence();
#pragma unroll
  for (int k = 0; k < P::channels / 16; ++k) multiply_bf16(d, matrix_moved(a, k * 32), matrix_moved(b, k * 32), k > 0);
  multiply_commit();
}

/// A product's result, rounded, as the next one's operand, 16 columns each.
template <int steps>
__device__ __forceinline__ void round_sums(unsigned (&rows)[steps][4], const float (&d)[8 * steps]) {
#pragma unroll
  for (int k = 0; k < steps; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) rows[k][i] = pack_bf16(d[k * 8 + i * 2], d[k * 8 + i * 2 + 1]);
  }
}

/// Starts d += weights times 64 rows of `row_bytes`.
template <int row_bytes, int sums>
__device__ __forceinline__ void start_weighted(float (&d)[sums], unsigned (&weights)[4][4], unsigned long long rows) {
#pragma unroll
  for (int k = 0; k < 4; ++k) multiply_registers(weights[k]);
  multiply_registers(d);
  multiply_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) multiply_bf16<1>(d, weights[k], matrix_moved(rows, k * 16 * row_bytes));
  multiply_commit();
}
/// Until here the products may have read the weights.
__device__ __forceinline__ void hold(unsigned (&weights)[4][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) multiply_registers(weights[k]);
}

/// Four neighbouring threads hold a row.
__device__ __forceinline__ float largest_of_row(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/// 64 queries of a warpgroup while it walks through the keys, 64 at a time: their sums of `sums` / 32 x 64 channels,
/// relative to the running maximum of their scores.
template <int sums>
class SoftmaxRows {
 public:
  __device__ __forceinline__ Run<float, 4> value_run(int i) const { return run_of(sums_, i); }
  __device__ __forceinline__ int token(int i) const { return first_ + run_row(i); }
  /// The logarithm of the sum of exponentials of token(half).
  __device__ __forceinline__ float log_sum(int half) const {
    return 0.693147181f * (largest_[half] + log2f(total_[half]));
  }
  /// Of the threads that hold a row, one.
  __device__ __forceinline__ static bool is_first_of_row() { return threadIdx.x % 4 == 0; }

 protected:
  static constexpr int step = 64;  ///< Keys at a time: more would be registers that keep other blocks out.
  using Scores = float[step / 2];

  __device__ __forceinline__ void start(int first) {
    first_ = first;
    clear(sums_);
#pragma unroll
    for (int half = 0; half < 2; ++half) largest_[half] = __int_as_float(0xff800000), total_[half] = 0.0f;
  }

  __device__ __forceinline__ static void hide_missing_keys(Scores& scores, int left) {
#pragma unroll
    for (int i = 0; i < step / 2; ++i) {
      const int key = i / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
      if (key >= left) scores[i] = __int_as_float(0xff800000);
    }
  }

  /// Scores become exponentials relative to the running maximum, which the sums follow in shrink_sums, before the next
  /// ones. Every step has a key, so that the maximum is finite where the scores are. Exponentials are powers of two of
  /// scores times `scale_log2`.
  __device__ __forceinline__ void take_exponentials(Scores& scores, float scale_log2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = scores[half * 2];
#pragma unroll
      for (int i = half * 2; i < step / 2; i += 4) largest = fmaxf(largest, fmaxf(scores[i], scores[i + 1]));
      const float before = largest_[half];
      largest_[half] = fmaxf(before, largest_of_row(largest) * scale_log2);
      shrink_[half] = exp2_approx(before - largest_[half]);
      float total = 0.0f;
#pragma unroll
      for (int i = half * 2; i < step / 2; i += 4) {
#pragma unroll
        for (int e = i; e < i + 2; ++e) {
          scores[e] = exp2_approx(fmaf(scores[e], scale_log2, -largest_[half]));
          total += scores[e];
        }
      }
      total_[half] = fmaf(total_[half], shrink_[half], total);
    }
  }
  __device__ __forceinline__ void shrink_sums() {
    scale_rows(0, shrink_[0]);
    scale_rows(1, shrink_[1]);
  }

  /// The sums become the value.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& total = total_[half];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      scale_rows(half, 1.0f / total);
    }
  }

  float sums_[sums];

 private:
  __device__ __forceinline__ void scale_rows(int half, float by) {
#pragma unroll
    for (int i = half * 2; i < sums; i += 4) sums_[i] *= by, sums_[i + 1] *= by;
  }

  int first_ = 0;  ///< Of the warpgroup's queries.
  float largest_[2], total_[2], shrink_[2];
};

/// softmax(q k' / sqrt(width)) v of a block of `warpgroups` times 64 queries.
template <class P, int warpgroups_>
class Forward : public SoftmaxRows<P::sums> {
  using Rows = SoftmaxRows<P::sums>;
  using Rows::step, Rows::sums_;

 public:
  static constexpr int warpgroups = warpgroups_, threads = 128 * warpgroups, rows = 64 * warpgroups;
  static constexpr int keys_bytes = P::blocks * P::block_bytes, bytes = 2 * keys_bytes + warpgroups * P::block_bytes;
  static constexpr int run_count = P::sums / 4;

  /// By all threads, once. `q`, `k`, `v`: the head's first rows; `shared` is a multiple of 1024; `scale_log2` is
  /// log2(e) / sqrt(width).
  __device__ __forceinline__ void run(unsigned char* shared, const bf16* q, const bf16* k, const bf16* v,
                                      int first_query, float scale_log2) {
    unsigned char *const values = shared + keys_bytes, *const queries = values + keys_bytes;
    copy_blocks<P, P::qkv_pitch, warpgroups, threads>(queries, q, first_query);
    copy_blocks<P, P::qkv_pitch, P::blocks, threads>(shared, k, 0);
    copy_blocks<P, P::qkv_pitch, P::blocks, threads>(values, v, 0);
    copy_async_commit();
    const int place = static_cast<int>(threadIdx.x) / 128 * 64;
    const unsigned long long own = rows_from<P>(queries, place);
    copy_async_wait<0>();
    fence_shared_for_engines();
    __syncthreads();

    this->start(first_query + place);
#pragma unroll 1
    for (int key = 0; key < 64 * P::blocks; key += step) {
      typename Rows::Scores scores;
      start_row_products<P>(scores, own, rows_from<P>(shared, key));
      multiply_wait<0>();
      multiply_registers(scores);
      if (P::length % step != 0 && key + step > P::length) this->hide_missing_keys(scores, P::length - key);
      this->take_exponentials(scores, scale_log2);
      this->shrink_sums();
      unsigned p[step / 16][4];
      round_sums(p, scores);
      start_weighted<P::row_bytes>(sums_, p, rows_from<P>(values, key));
      multiply_wait<0>();
      hold(p);
      multiply_registers(sums_);
    }
    this->finish();
  }
};

/// A head's first rows, and what the forward left of it.
struct Operands {
  const bf16 *q, *k, *v, *out, *dout;
  const float* log_sum;
};

/// By a cluster of `parts` blocks, one or two, with as many of the head's keys each, and all queries.
template <class P, int parts_>
class Gradient {
 public:
  static constexpr int parts = parts_, warpgroups = P::blocks / parts, threads = 128 * warpgroups;
  static constexpr int tile_bytes = 64 * 128, matrix_bytes = P::blocks * P::block_bytes;
  static constexpr int ds_at = 2 * matrix_bytes + 2 * matrix_bytes / parts;
  static constexpr int received_at = ds_at + warpgroups * warpgroups * tile_bytes;
  static constexpr int statistics_at = received_at + (parts - 1) * threads * P::sums * 4;
  static constexpr int bytes = statistics_at + 2 * 64 * P::blocks * 4;
  static constexpr int run_count = P::sums / 4;
  using Own = Pieces<P, P::blocks, threads>;
  static_assert(P::blocks % parts == 0 && parts <= 2);

  /// `shared` is a multiple of 1024.
  __device__ __forceinline__ Gradient(unsigned char* shared, int part)
      : q_(shared),
        dout_(q_ + matrix_bytes),
        k_(dout_ + matrix_bytes),
        v_(k_ + matrix_bytes / parts),
        ds_(shared + ds_at),
        received_(reinterpret_cast<Run<float, 4>*>(shared + received_at) + threadIdx.x),
        minus_log_sum_(reinterpret_cast<float*>(shared + statistics_at)),
        delta_(minus_log_sum_ + 64 * P::blocks),
        part_(part),
        warpgroup_(__shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0)) {}

  /// By all threads, first.
  __device__ __forceinline__ void load(const Operands& from) {
    // Nothing waits before everything has been asked for.
    Run<bf16, 8> out[Own::rounds];
#pragma unroll
    for (int i = 0; i < Own::rounds; ++i) {
      const bool valid = Own::row(i) < P::length && Own::channel() < P::width;
      out[i] = load_run<8>(from.out + (valid ? Own::row(i) * P::out_pitch + Own::channel() : 0));
    }
    const int token = static_cast<int>(threadIdx.x);
    const float log_sum = from.log_sum[token < P::length ? token : 0];
    copy_blocks<P, P::qkv_pitch, P::blocks, threads>(q_, from.q, 0);
    copy_blocks<P, P::qkv_pitch, warpgroups, threads>(k_, from.k, part_ * warpgroups * 64);
    copy_blocks<P, P::qkv_pitch, warpgroups, threads>(v_, from.v, part_ * warpgroups * 64);
    copy_blocks<P, P::out_pitch, P::blocks, threads>(dout_, from.dout, 0);
    copy_async_commit();
    if constexpr (parts > 1) cluster_meet();  // From here on the other block is there.
    copy_async_wait<0>();
    // Of missing queries, what makes probabilities zero.
    if (token < 64 * P::blocks) {
      minus_log_sum_[token] = token < P::length ? -1.44269504f * log_sum : __int_as_float(0xff800000);
    }
    write_delta(out);
    fence_shared_for_engines();
    __syncthreads();
  }

  /// dK and dV of the warpgroup's keys. Of two blocks each begins with the queries that the other one stores.
  __device__ __forceinline__ void sum_keys(float scale_log2) {
    clear(keys_), clear(values_);
    if constexpr (parts > 1) {
      walk((part_ ^ 1) * warpgroups, scale_log2);
      weigh_keys();
#pragma unroll
      for (int i = 0; i < run_count; ++i) {
        const float* const run = &queries_[i * 4];
        cluster_store(cluster_address(received_ + i * threads, part_ ^ 1), run[0], run[1], run[2], run[3]);
      }
      __syncthreads();
    }
    walk(part_ * warpgroups, scale_log2);
  }

  /// dQ of the warpgroup's queries, after sum_keys.
  __device__ __forceinline__ void sum_queries() {
    weigh_keys();
    if constexpr (parts > 1) {
      cluster_sync();
#pragma unroll
      for (int i = 0; i < P::sums; ++i) queries_[i] += received_[i / 4 * threads][i % 4];
    }
  }

  /// dK and dQ lack the factor of the scores.
  __device__ __forceinline__ Run<float, 4> query_run(int i) const { return run_of(queries_, i); }
  __device__ __forceinline__ Run<float, 4> key_run(int i) const { return run_of(keys_, i); }
  __device__ __forceinline__ Run<float, 4> value_run(int i) const { return run_of(values_, i); }
  __device__ __forceinline__ int token(int i) const { return (part_ * warpgroups + warpgroup_) * 64 + run_row(i); }

 private:
  /// dS of 64 queries and 64 keys: rows of 128 bytes, a query each.
  __device__ __forceinline__ unsigned char* tile(int queries, int keys) const {
    return ds_ + (queries * warpgroups + keys) * tile_bytes;
  }

  /// Adds to dK and dV, and lays down dS, of `warpgroups` blocks of queries.
  __device__ __forceinline__ void walk(int first, float scale_log2) {
#pragma unroll 1
    for (int i = 0; i < warpgroups; ++i) {
      const int queries = (first + i) * 64;
      float scores[32], dp[32];
      start_row_products<P>(scores, rows_from<P>(k_, warpgroup_ * 64), rows_from<P>(q_, queries));
      start_row_products<P>(dp, rows_from<P>(v_, warpgroup_ * 64), rows_from<P>(dout_, queries));
      multiply_wait<0>();
      multiply_registers(scores);
      multiply_registers(dp);
      unsigned p[4][4], ds[4][4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        take_gradients(p[k], ds[k], &scores[k * 8], &dp[k * 8], queries, tile(i, warpgroup_), k, scale_log2);
        multiply_registers(p[k]);
        multiply_registers(ds[k]);
      }
      multiply_registers(values_);
      multiply_registers(keys_);
      multiply_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        multiply_bf16<1>(values_, p[k], rows_from<P>(dout_, queries + k * 16));
        multiply_bf16<1>(keys_, ds[k], rows_from<P>(q_, queries + k * 16));
      }
      multiply_commit();
      multiply_wait<0>();
      multiply_registers(values_);
      multiply_registers(keys_);
    }
    fence_shared_for_engines();
  }

  /// Of the warpgroup's block of queries among those whose dS was laid down last, dQ as far as the block's keys go.
  __device__ __forceinline__ void weigh_keys() {
    __syncthreads();
    clear(queries_);
    multiply_registers(queries_);
    multiply_fence();
#pragma unroll
    for (int k = 0; k < 4 * warpgroups; ++k) {
      const unsigned long long ds = matrix_descriptor(tile(warpgroup_, k / 4), 8 * 128);
      multiply_bf16<0, 1>(queries_, matrix_moved(ds, k % 4 * 32), rows_from<P>(k_, k * 16), true);
    }
    multiply_commit();
    multiply_wait<0>();
    multiply_registers(queries_);
  }

  /// From the pieces of the result's rows, and those of its gradient's that this thread copied. Missing ones are zeros.
  __device__ __forceinline__ void write_delta(const Run<bf16, 8> (&out)[Own::rounds]) const {
#pragma unroll
    for (int i = 0; i < Own::rounds; ++i) {
      const auto dout = *reinterpret_cast<const Run<bf16, 8>*>(dout_ + Own::place(i));
      float sum = 0.0f;
#pragma unroll
      for (int l = 0; l < 8; ++l) sum = fmaf(widen(out[i][l]), widen(dout[l]), sum);
      sum = reduce::combine_neighbours<reduce::Sum, Own::in_row>(sum);
      if (Own::channel() == 0) delta_[Own::row(i)] = sum;
    }
  }

  /// Of 16 queries: probabilities from scores, and dS from dP, which is laid down, too.
  __device__ __forceinline__ void take_gradients(unsigned (&p)[4], unsigned (&ds)[4], const float* scores,
                                                 const float* dp, int queries, unsigned char* tile, int k,
                                                 float scale_log2) const {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % 4;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int first = queries + k * 16 + j * 8 + lane % 4 * 2;
      const auto minus_log_sum = *reinterpret_cast<const Run<float, 2>*>(minus_log_sum_ + first);
      const auto delta = *reinterpret_cast<const Run<float, 2>*>(delta_ + first);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float probability[2], gradient[2];
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = j * 4 + half * 2 + e;
          probability[e] = exp2_approx(fmaf(scores[i], scale_log2, minus_log_sum.element[e]));
          gradient[e] = probability[e] * (dp[i] - delta.element[e]);
          // Of a missing key, the probability may be infinite.
          if (P::length % 64 != 0 && token(half) >= P::length) gradient[e] = 0.0f;
        }
        p[j * 2 + half] = pack_bf16(probability[0], probability[1]);
        ds[j * 2 + half] = pack_bf16(gradient[0], gradient[1]);
      }
    }
    const int row = k * 16 + lane / 16 * 8 + lane % 8, chunk = (warp * 2 + lane / 8 % 2) ^ lane % 8;
    stmatrix_x4_trans(tile + row * 128 + chunk * 16, ds[0], ds[1], ds[2], ds[3]);
  }

  unsigned char *const q_, *const dout_, *const k_, *const v_, *const ds_;
  Run<float, 4>* const received_;  ///< Of the thread, what the other block has of dQ, `threads` runs apart.
  float *const minus_log_sum_, *const delta_;
  const int part_, warpgroup_;
  float queries_[P::sums], keys_[P::sums], values_[P::sums];
};

}  // namespace attention_wgmma
