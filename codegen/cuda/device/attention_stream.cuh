// Attention and its gradient on Hopper's copy engine and warpgroup products, of any length: bf16 operands, heads of 64,
// 128 or 256 channels, sums in fp32. The formulas are those of attention_wgmma.cuh.
//
// Everything lies in shared memory as tiles of 64 tokens of one head: a tile is width / 64 chunks of 64 rows of 128
// bytes. A block's warpgroups own tiles, which stay; the tiles that they walk through pass in a ring, which one thread
// of a further warpgroup, the producer, keeps full. The others of it are there for their registers.
//
//   Forward                 a warpgroup owns queries, walks through keys and values
//   QueryGradient           a warpgroup owns queries and rows of dO, walks through keys and values: dQ
//   KeyGradient             a warpgroup owns keys and values, walks through queries and dO: dK and dV
//   PairedKeyGradient       the same of wide heads, whose dK and dV do not fit one thread's registers: of a pair of
//                           warpgroups the first makes P and sums dV, the second makes dP and sums dK. P passes from
//                           the one to the other through shared memory, in fp32: both have the same places of it.
//
// While the products of one step's weights run, those of the next step's scores are already waiting; and while one
// warpgroup takes exponentials, the others multiply. The order of every sum is tokens ascending, and width ascending,
// in the tensor cores' steps.
#pragma once
#include "codegen/cuda/device/attention_wgmma.cuh"

namespace attention_stream {

using attention_wgmma::clear, attention_wgmma::round_sums, attention_wgmma::run_of, attention_wgmma::run_row;

constexpr int kTokens = 64, kChunkBytes = kTokens * 128;  ///< Of a tile; of 64 channels of it.

/// Heads of `width` channels, `length` tokens.
template <int length_, int width_>
struct Problem {
  static constexpr int length = length_, width = width_;
  static constexpr int chunks = width / 64, tile_bytes = chunks * kChunkBytes;
  static constexpr int tiles = (length + kTokens - 1) / kTokens;
  static constexpr int sums = width / 2;  ///< Of a thread, for 64 rows.
  static_assert(width == 64 || width == 128 || width == 256);
};

/// Where a head's channels begin in the projection and in the result, and its image.
struct Head {
  int q, k, v, out, image;
};

/// A block's shared memory: `owned` tiles, then the ring, its barriers, and `rest` bytes.
template <class P, int consumers_, int owned_, int slots_, int rest>
struct Memory {
  static constexpr int consumers = consumers_, owned = owned_, slots = slots_;
  static constexpr int threads = 128 * (consumers + 1);  ///< The last warpgroup is the producer.
  static constexpr int barriers_at = (owned + slots) * P::tile_bytes;
  static constexpr int rest_at = barriers_at + (2 * slots + 2) * 8, bytes = rest_at + rest;
  static_assert(rest_at % 16 == 0 && (consumers == 2 || consumers == 3));

  unsigned char* start;

  __device__ __forceinline__ unsigned char* own(int tile) const { return start + tile * P::tile_bytes; }
  __device__ __forceinline__ unsigned char* slot(int i) const { return start + (owned + i) * P::tile_bytes; }
  __device__ __forceinline__ Barrier* full(int i) const { return reinterpret_cast<Barrier*>(start + barriers_at) + i; }
  __device__ __forceinline__ Barrier* empty(int i) const { return full(slots + i); }
  __device__ __forceinline__ Barrier* owned_full() const { return full(2 * slots); }

  /// By all threads, first.
  __device__ __forceinline__ void init() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < slots; ++i) {
        barrier_init(full(i), 1);
        barrier_init(empty(i), 4 * consumers);
      }
      barrier_init(owned_full(), 1);
      barrier_init_done();
    }
    __syncthreads();
  }
  __device__ __forceinline__ static bool is_producer() { return threadIdx.x >= 128 * consumers; }
  /// By all threads of the producer, and by the others: a processor's registers are dealt out anew.
  __device__ __forceinline__ static void be_producer() { give_registers<consumers == 2 ? 24 : 32>(); }
  __device__ __forceinline__ static void be_consumer() { take_registers<consumers == 2 ? 240 : 160>(); }
  __device__ __forceinline__ static bool is_first_producer() { return threadIdx.x == 128 * consumers; }
};

/// A place in the ring, and the parity of the round.
template <int slots>
struct Place {
  int slot = 0, parity = 0;

  __device__ __forceinline__ void advance() {
    if (++slot < slots) return;
    slot = 0;
    parity ^= 1;
  }
};

template <class P>
__device__ __forceinline__ void load_tile(unsigned char* to, const TensorMap& from, Barrier* barrier, int channel,
                                          int token, int image) {
#pragma unroll
  for (int i = 0; i < P::chunks; ++i) {
    tensor_load(to + i * kChunkBytes, from, barrier, channel + i * 64, token, image);
  }
}

/// The producer's thread: loads tiles one after the other. What lies past an image's tokens is zeros.
template <class P, class M>
class Writer {
 public:
  __device__ __forceinline__ explicit Writer(const M& memory) : memory_(memory) {
    barrier_arrive_expecting(memory_.owned_full(), M::owned * P::tile_bytes);
  }
  __device__ __forceinline__ void load_own(int tile, const TensorMap& from, int channel, int token, int image) const {
    load_tile<P>(memory_.own(tile), from, memory_.owned_full(), channel, token, image);
  }
  __device__ __forceinline__ void load_next(const TensorMap& from, int channel, int token, int image) {
    Barrier* const full = memory_.full(place_.slot);
    barrier_wait(memory_.empty(place_.slot), place_.parity ^ 1);
    barrier_arrive_expecting(full, P::tile_bytes);
    load_tile<P>(memory_.slot(place_.slot), from, full, channel, token, image);
    place_.advance();
  }

 private:
  const M memory_;
  Place<M::slots> place_;
};

/// A consumer's view of the ring.
template <class M>
class Reader {
 public:
  __device__ __forceinline__ explicit Reader(const M& memory) : memory_(memory) {}

  /// Waits for the next tile: its slot.
  __device__ __forceinline__ int next() {
    const int slot = place_.slot;
    barrier_wait(memory_.full(slot), place_.parity);
    place_.advance();
    return slot;
  }
  __device__ __forceinline__ void release(int slot) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(memory_.empty(slot));
  }

 private:
  const M memory_;
  Place<M::slots> place_;
};

__device__ __forceinline__ int warpgroup() { return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0); }

/// Starts d = rows of tile `a` times rows of tile `b`, along their width.
template <class P>
__device__ __forceinline__ void start_scores(float (&d)[32], const unsigned char* a, const unsigned char* b) {
  const unsigned long long rows = matrix_descriptor(a, 1024), columns = matrix_descriptor(b, 1024);
  multiply_fresh_registers(d);
  multiply_fence();
#pragma unroll
  for (int k = 0; k < P::width / 16; ++k) {
    const int at = k / 4 * kChunkBytes + k % 4 * 32;
    multiply_bf16(d, matrix_moved(rows, at), matrix_moved(columns, at), k > 0);
  }
  multiply_commit();
}

/// Starts d += weights times the tile's rows.
template <int sums>
__device__ __forceinline__ void start_weighted(float (&d)[sums], unsigned (&weights)[4][4], const unsigned char* tile) {
  const unsigned long long rows = matrix_descriptor(tile, 1024, kChunkBytes);
#pragma unroll
  for (int k = 0; k < 4; ++k) multiply_registers(weights[k]);
  multiply_registers(d);
  multiply_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) multiply_bf16<1>(d, weights[k], matrix_moved(rows, k * 2048));
  multiply_commit();
}
__device__ __forceinline__ void hold(unsigned (&weights)[4][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) multiply_registers(weights[k]);
}

/// softmax(q k' / sqrt(width)) v of `consumers` tiles of queries. Exponentials are powers of two of scores times
/// `scale_log2`, log2(e) / sqrt(width).
template <class P, int consumers_, int slots_>
class Forward : public attention_wgmma::SoftmaxRows<P::sums> {
  using Rows = attention_wgmma::SoftmaxRows<P::sums>;
  using Rows::sums_;

 public:
  using Shared = Memory<P, consumers_, consumers_, slots_, 0>;
  static constexpr int threads = Shared::threads, rows = kTokens * consumers_, bytes = Shared::bytes;
  static constexpr int run_count = P::sums / 4;

  __device__ __forceinline__ static void load(const Shared& memory, const TensorMap& qkv, const Head& head, int first) {
    Writer<P, Shared> writer(memory);
#pragma unroll
    for (int i = 0; i < consumers_; ++i) writer.load_own(i, qkv, head.q, first + i * kTokens, head.image);
#pragma unroll 1
    for (int token = 0; token < P::length; token += kTokens) {
      writer.load_next(qkv, head.k, token, head.image);
      writer.load_next(qkv, head.v, token, head.image);
    }
  }

  __device__ __forceinline__ void run(const Shared& memory, int first, float scale_log2) {
    Reader<Shared> ring(memory);
    const unsigned char* const own = memory.own(warpgroup());
    this->start(first + warpgroup() * kTokens);
    typename Rows::Scores scores;
    barrier_wait(memory.owned_full(), 0);
    int keys = ring.next();
    start_scores<P>(scores, own, memory.slot(keys));
    multiply_wait<0>();
    multiply_registers(scores);
    ring.release(keys);
    unsigned p[4][4];
#pragma unroll 1
    for (int tile = 0; tile + 1 < P::tiles; ++tile) {
      this->take_exponentials(scores, scale_log2);
      round_sums(p, scores);
      const int values = ring.next();
      start_weighted(sums_, p, memory.slot(values));
      keys = ring.next();
      start_scores<P>(scores, own, memory.slot(keys));
      multiply_wait<0>();
      hold(p);
      multiply_registers(sums_);
      multiply_registers(scores);
      ring.release(values);
      ring.release(keys);
    }
    constexpr int left = P::length - (P::tiles - 1) * kTokens;
    if (left < kTokens) this->hide_missing_keys(scores, left);
    this->take_exponentials(scores, scale_log2);
    round_sums(p, scores);
    start_weighted(sums_, p, memory.slot(ring.next()));
    multiply_wait<0>();
    hold(p);
    multiply_registers(sums_);
    this->finish();
  }
};

/// What the forward left of a head, and delta.
struct Statistics {
  const float *log_sum, *delta;
};

/// dQ of `consumers` tiles of queries, but for the factor of the scores.
template <class P, int consumers_, int slots_>
class QueryGradient {
 public:
  using Shared = Memory<P, consumers_, 2 * consumers_, slots_, 0>;
  static constexpr int threads = Shared::threads, rows = kTokens * consumers_, bytes = Shared::bytes;
  static constexpr int run_count = P::sums / 4;

  __device__ __forceinline__ static void load(const Shared& memory, const TensorMap& qkv, const TensorMap& dout,
                                              const Head& head, int first) {
    Writer<P, Shared> writer(memory);
#pragma unroll
    for (int i = 0; i < consumers_; ++i) {
      writer.load_own(2 * i, qkv, head.q, first + i * kTokens, head.image);
      writer.load_own(2 * i + 1, dout, head.out, first + i * kTokens, head.image);
    }
#pragma unroll 1
    for (int token = 0; token < P::length; token += kTokens) {
      writer.load_next(qkv, head.k, token, head.image);
      writer.load_next(qkv, head.v, token, head.image);
    }
  }

  __device__ __forceinline__ void run(const Shared& memory, const Statistics& from, int first, float scale_log2) {
    Reader<Shared> ring(memory);
    const unsigned char *const own = memory.own(2 * warpgroup()), *const own_dout = memory.own(2 * warpgroup() + 1);
    first_ = first + warpgroup() * kTokens;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int token = first_ + run_row(half);
      minus_log_sum_[half] = token < P::length ? -1.44269504f * from.log_sum[token] : 0.0f;
      delta_[half] = token < P::length ? from.delta[token] : 0.0f;
    }
    clear(sums_);
    float scores[32], dp[32];
    barrier_wait(memory.owned_full(), 0);
    int keys = ring.next();
    start_scores<P>(scores, own, memory.slot(keys));
    int values = ring.next();
    start_scores<P>(dp, own_dout, memory.slot(values));
    multiply_wait<0>();
    multiply_registers(scores);
    multiply_registers(dp);
    ring.release(values);
    unsigned ds[4][4];
#pragma unroll 1
    for (int tile = 0; tile + 1 < P::tiles; ++tile) {
      take_gradients<kTokens>(ds, scores, dp, scale_log2);
      start_weighted(sums_, ds, memory.slot(keys));
      const int next_keys = ring.next();
      start_scores<P>(scores, own, memory.slot(next_keys));
      multiply_wait<1>();
      hold(ds);
      multiply_registers(sums_);
      ring.release(keys);
      keys = next_keys;
      values = ring.next();
      start_scores<P>(dp, own_dout, memory.slot(values));
      multiply_wait<0>();
      multiply_registers(scores);
      multiply_registers(dp);
      ring.release(values);
    }
    take_gradients<P::length - (P::tiles - 1) * kTokens>(ds, scores, dp, scale_log2);
    start_weighted(sums_, ds, memory.slot(keys));
    multiply_wait<0>();
    hold(ds);
    multiply_registers(sums_);
  }

  __device__ __forceinline__ Run<float, 4> query_run(int i) const { return run_of(sums_, i); }
  __device__ __forceinline__ int token(int i) const { return first_ + run_row(i); }

 private:
  /// dS of a step that has `count` keys.
  template <int count>
  __device__ __forceinline__ void take_gradients(unsigned (&ds)[4][4], float (&scores)[32], const float (&dp)[32],
                                                 float scale_log2) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int half = i / 2 % 2, key = i / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
      scores[i] = exp2_approx(fmaf(scores[i], scale_log2, minus_log_sum_[half])) * (dp[i] - delta_[half]);
      // Of a missing key, the probability may be infinite.
      if (count < kTokens && key >= count) scores[i] = 0.0f;
    }
    round_sums(ds, scores);
  }

  int first_ = 0;
  float sums_[P::sums], minus_log_sum_[2], delta_[2];
};

/// What both ways of summing over queries share: every query's log-sum-exp, negative and as a power of two, and delta.
template <class P, int consumers>
struct QueryStatistics {
  static constexpr int bytes = 2 * 4 * kTokens * P::tiles;
  float *minus_log_sum, *delta;

  __device__ __forceinline__ explicit QueryStatistics(unsigned char* start)
      : minus_log_sum(reinterpret_cast<float*>(start)), delta(minus_log_sum + kTokens * P::tiles) {}

  /// By all consumers. Of missing queries, what makes probabilities zero.
  __device__ __forceinline__ void load(const Statistics& from) const {
    for (int i = static_cast<int>(threadIdx.x); i < kTokens * P::tiles; i += 128 * consumers) {
      minus_log_sum[i] = i < P::length ? -1.44269504f * from.log_sum[i] : __int_as_float(0xff800000);
      delta[i] = i < P::length ? from.delta[i] : 0.0f;
    }
    named_barrier_sync(1, 128 * consumers);
  }
  /// Of `of`, those of a thread's columns 8 j + 2 (lane % 4) and the next one of a tile.
  __device__ __forceinline__ static Run<float, 2> pair(const float* of, int tile, int j) {
    return *reinterpret_cast<const Run<float, 2>*>(of + tile * kTokens + j * 8 + static_cast<int>(threadIdx.x) % 4 * 2);
  }
};

/// dK, but for the factor of the scores, and dV of `consumers` tiles of keys.
template <class P, int consumers_, int slots_>
class KeyGradient {
  using Queries = QueryStatistics<P, consumers_>;

 public:
  using Shared = Memory<P, consumers_, 2 * consumers_, slots_, Queries::bytes>;
  static constexpr int threads = Shared::threads, rows = kTokens * consumers_, bytes = Shared::bytes;
  static constexpr int run_count = P::sums / 4;

  __device__ __forceinline__ static void load(const Shared& memory, const TensorMap& qkv, const TensorMap& dout,
                                              const Head& head, int first) {
    Writer<P, Shared> writer(memory);
#pragma unroll
    for (int i = 0; i < consumers_; ++i) {
      writer.load_own(2 * i, qkv, head.k, first + i * kTokens, head.image);
      writer.load_own(2 * i + 1, qkv, head.v, first + i * kTokens, head.image);
    }
#pragma unroll 1
    for (int token = 0; token < P::length; token += kTokens) {
      writer.load_next(qkv, head.q, token, head.image);
      writer.load_next(dout, head.out, token, head.image);
    }
  }

  __device__ __forceinline__ void run(const Shared& memory, const Statistics& from, int first, float scale_log2) {
    Reader<Shared> ring(memory);
    const unsigned char *const own = memory.own(2 * warpgroup()), *const own_values = memory.own(2 * warpgroup() + 1);
    const Queries statistics(memory.start + Shared::rest_at);
    first_ = first + warpgroup() * kTokens;
    statistics.load(from);
    clear(keys_), clear(values_);
    float scores[32], dp[32];
    barrier_wait(memory.owned_full(), 0);
    int queries = ring.next();
    start_scores<P>(scores, own, memory.slot(queries));
    int dout = ring.next();
    start_scores<P>(dp, own_values, memory.slot(dout));
    unsigned p[4][4], ds[4][4];
#pragma unroll 1
    for (int tile = 0; tile + 1 < P::tiles; ++tile) {
      finish_scores(p, ds, scores, dp, statistics, tile, scale_log2);
      start_weighted(values_, p, memory.slot(dout));
      start_weighted(keys_, ds, memory.slot(queries));
      const int next_queries = ring.next();
      start_scores<P>(scores, own, memory.slot(next_queries));
      const int next_dout = ring.next();
      start_scores<P>(dp, own_values, memory.slot(next_dout));
      multiply_wait<2>();
      hold(p), hold(ds);
      multiply_registers(values_);
      multiply_registers(keys_);
      ring.release(queries);
      ring.release(dout);
      queries = next_queries, dout = next_dout;
    }
    finish_scores(p, ds, scores, dp, statistics, P::tiles - 1, scale_log2);
    start_weighted(values_, p, memory.slot(dout));
    start_weighted(keys_, ds, memory.slot(queries));
    multiply_wait<0>();
    hold(p), hold(ds);
    multiply_registers(values_);
    multiply_registers(keys_);
  }

  __device__ __forceinline__ static bool has_keys() { return true; }
  __device__ __forceinline__ static bool has_values() { return true; }
  __device__ __forceinline__ Run<float, 4> key_run(int i) const { return run_of(keys_, i); }
  __device__ __forceinline__ Run<float, 4> value_run(int i) const { return run_of(values_, i); }
  __device__ __forceinline__ int token(int i) const { return first_ + run_row(i); }

 private:
  /// A missing key's probabilities may be infinite, but are in its own row alone, which nobody stores.
  __device__ __forceinline__ static void finish_scores(unsigned (&p)[4][4], unsigned (&ds)[4][4], float (&scores)[32],
                                                       float (&dp)[32], const Queries& statistics, int tile,
                                                       float scale_log2) {
    multiply_wait<0>();
    multiply_registers(scores);
    multiply_registers(dp);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const auto minus_log_sum = Queries::pair(statistics.minus_log_sum, tile, j);
      const auto delta = Queries::pair(statistics.delta, tile, j);
#pragma unroll
      for (int i = j * 4; i < j * 4 + 4; ++i) {
        scores[i] = exp2_approx(fmaf(scores[i], scale_log2, minus_log_sum[i % 2]));
        dp[i] = scores[i] * (dp[i] - delta[i % 2]);
      }
    }
    round_sums(p, scores);
    round_sums(ds, dp);
  }

  int first_ = 0;
  float keys_[P::sums], values_[P::sums];
};

/// The same of one tile of keys, by two warpgroups.
template <class P, int slots_>
class PairedKeyGradient {
  using Queries = QueryStatistics<P, 2>;
  static constexpr int probabilities_bytes = 128 * 32 * 4;

 public:
  using Shared = Memory<P, 2, 2, slots_, probabilities_bytes + Queries::bytes + 16>;
  static constexpr int threads = Shared::threads, rows = kTokens, bytes = Shared::bytes;
  static constexpr int run_count = P::sums / 4;

  __device__ __forceinline__ static void load(const Shared& memory, const TensorMap& qkv, const TensorMap& dout,
                                              const Head& head, int first) {
    Writer<P, Shared> writer(memory);
    writer.load_own(0, qkv, head.k, first, head.image);
    writer.load_own(1, qkv, head.v, first, head.image);
#pragma unroll 1
    for (int token = 0; token < P::length; token += kTokens) {
      writer.load_next(qkv, head.q, token, head.image);
      writer.load_next(dout, head.out, token, head.image);
    }
  }

  __device__ __forceinline__ void run(const Shared& memory, const Statistics& from, int first, float scale_log2) {
    const Queries statistics(memory.start + Shared::rest_at + probabilities_bytes);
    auto* const probabilities = reinterpret_cast<Run<float, 4>*>(memory.start + Shared::rest_at) + threadIdx.x % 128;
    Barrier* const full =
        reinterpret_cast<Barrier*>(memory.start + Shared::rest_at + probabilities_bytes + Queries::bytes);
    Barrier* const empty = full + 1;
    first_ = first;
    is_second_ = warpgroup() != 0;
    if (threadIdx.x == 0) {
      barrier_init(full, 4);
      barrier_init(empty, 4);
      barrier_init_done();
    }
    statistics.load(from);  // Behind which all see the barriers.
    if (is_second_) {
      walk<true>(memory, [&](unsigned(&ds)[4][4], float(&dp)[32], int tile) {
        barrier_wait(full, tile % 2);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const Run<float, 4> p = probabilities[j * 128];
          const auto delta = Queries::pair(statistics.delta, tile, j);
#pragma unroll
          for (int i = 0; i < 4; ++i) dp[j * 4 + i] = p[i] * (dp[j * 4 + i] - delta[i % 2]);
        }
        arrive(empty);
        round_sums(ds, dp);
      });
    } else {
      walk<false>(memory, [&](unsigned(&p)[4][4], float(&scores)[32], int tile) {
        barrier_wait(empty, tile % 2 ^ 1);  // The first time nobody has read.
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const auto minus_log_sum = Queries::pair(statistics.minus_log_sum, tile, j);
#pragma unroll
          for (int i = j * 4; i < j * 4 + 4; ++i) {
            scores[i] = exp2_approx(fmaf(scores[i], scale_log2, minus_log_sum[i % 2]));
          }
          probabilities[j * 128] = {scores[j * 4], scores[j * 4 + 1], scores[j * 4 + 2], scores[j * 4 + 3]};
        }
        arrive(full);
        round_sums(p, scores);
      });
    }
  }

  __device__ __forceinline__ bool has_keys() const { return is_second_; }
  __device__ __forceinline__ bool has_values() const { return !is_second_; }
  __device__ __forceinline__ Run<float, 4> key_run(int i) const { return run_of(sums_, i); }
  __device__ __forceinline__ Run<float, 4> value_run(int i) const { return run_of(sums_, i); }
  __device__ __forceinline__ int token(int i) const { return first_ + run_row(i); }

 private:
  __device__ __forceinline__ static void arrive(Barrier* barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
  }

  /// `weigh(weights, products, tile)` makes a step's weights of its products. The first warpgroup multiplies its keys
  /// with queries and weighs dO, the second its values with dO and weighs queries.
  template <bool is_second, class Weigh>
  __device__ __forceinline__ void walk(const Shared& memory, const Weigh& weigh) {
    Reader<Shared> ring(memory);
    const unsigned char* const own = memory.own(is_second ? 1 : 0);
    clear(sums_);
    float products[32];
    unsigned weights[4][4];
    barrier_wait(memory.owned_full(), 0);
    int queries = ring.next(), dout = ring.next();
    start_scores<P>(products, own, memory.slot(is_second ? dout : queries));
#pragma unroll 1
    for (int tile = 0; tile + 1 < P::tiles; ++tile) {
      multiply_wait<0>();
      multiply_registers(products);
      weigh(weights, products, tile);
      start_weighted(sums_, weights, memory.slot(is_second ? queries : dout));
      const int next_queries = ring.next(), next_dout = ring.next();
      start_scores<P>(products, own, memory.slot(is_second ? next_dout : next_queries));
      multiply_wait<1>();
      hold(weights);
      multiply_registers(sums_);
      ring.release(queries);
      ring.release(dout);
      queries = next_queries, dout = next_dout;
    }
    multiply_wait<0>();
    multiply_registers(products);
    weigh(weights, products, P::tiles - 1);
    start_weighted(sums_, weights, memory.slot(is_second ? queries : dout));
    multiply_wait<0>();
    hold(weights);
    multiply_registers(sums_);
  }

  int first_ = 0;
  bool is_second_ = false;
  float sums_[P::sums];
};

}  // namespace attention_stream
