// Attention and its gradient on Hopper's copy engine and warpgroup products, of any length: bf16 operands, heads of 64,
// 128 or 256 channels, sums in fp32. The formulas are those of attention_wgmma.cuh.
//
// Everything lies in shared memory as tiles of 64 tokens of one head: a tile is width / 64 chunks of 64 rows of 128
// bytes. A block's warpgroups own tiles, which stay; the tiles that they walk through pass in a ring, which one thread
// of a further warpgroup, the producer, keeps full. The others of it are there for their registers. Blocks stay: each
// computes one set of rows after the other, and the producer is ahead.
//
//   Forward                 a warpgroup owns queries, walks through keys and values
//   QueryGradient           a warpgroup owns queries and rows of dO, walks through keys and values: dQ. What passes
//                           first are the block's rows of O, of which delta is made.
//   KeyGradient             a warpgroup owns keys and values, walks through queries and dO: dK and dV
//   PairedKeyGradient       the same of wide heads, whose dK and dV do not fit one thread's registers: of a pair of
//                           warpgroups the first makes P and sums dV, the second makes dP and sums dK. P passes from
//                           the one to the other through shared memory, in fp32: both have the same places of it.
//
// A step's scores are multiplied before what the last one's weights are for, so that exponentials are taken while a
// warpgroup's own products run, besides those of the others. The order of every sum is tokens ascending, and width
// ascending, in the tensor cores' steps.
#pragma once
#include "codegen/cuda/device/attention_wgmma.cuh"
#include "codegen/cuda/device/ring.cuh"

namespace attention_stream {

using attention_wgmma::clear, attention_wgmma::hold, attention_wgmma::round_sums, attention_wgmma::run_of,
    attention_wgmma::run_row;

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
template <class P, int consumers_, int owned_, int slots_, int rest = 0>
struct Memory {
  static constexpr int consumers = consumers_, owned = owned_, slots = slots_;
  static constexpr int threads = 128 * (consumers + 1);  ///< The last warpgroup is the producer.
  static constexpr int barriers_at = (owned + slots) * P::tile_bytes;
  static constexpr int rest_at = barriers_at + (2 * slots + 4) * 8, bytes = rest_at + rest;
  static_assert(rest_at % 16 == 0 && (consumers == 2 || consumers == 3));

  unsigned char* start;

  __device__ __forceinline__ unsigned char* own(int tile) const { return start + tile * P::tile_bytes; }
  __device__ __forceinline__ unsigned char* slot(int i) const { return start + (owned + i) * P::tile_bytes; }
  __device__ __forceinline__ Barrier* full(int i) const { return reinterpret_cast<Barrier*>(start + barriers_at) + i; }
  __device__ __forceinline__ Barrier* empty(int i) const { return full(slots + i); }
  __device__ __forceinline__ Barrier* owned_full() const { return full(2 * slots); }
  __device__ __forceinline__ Barrier* owned_empty() const { return full(2 * slots + 1); }
  /// Of what one warpgroup hands to another.
  __device__ __forceinline__ Barrier* handed() const { return full(2 * slots + 2); }
  __device__ __forceinline__ Barrier* taken() const { return full(2 * slots + 3); }

  /// By all threads, first.
  __device__ __forceinline__ void init() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < slots; ++i) {
        barrier_init(full(i), 1);
        barrier_init(empty(i), 4 * consumers);
      }
      barrier_init(owned_full(), 1);
      barrier_init(owned_empty(), 128 * consumers);
      barrier_init(handed(), 128);
      barrier_init(taken(), 128);
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

/// Where the rows of a head's part lie: from a channel on in a tensor of rows.
struct Rows {
  const TensorMap& tensor;
  int channel;
};

template <class P>
__device__ __forceinline__ void load_tile(unsigned char* to, const Rows& from, Barrier* barrier, int token, int image) {
#pragma unroll
  for (int i = 0; i < P::chunks; ++i) {
    tensor_load(to + i * kChunkBytes, from.tensor, barrier, from.channel + i * 64, token, image);
  }
}

/// A producer's thread's view of the ring and of the tiles that stay. What lies past an image's tokens is zeros.
template <class P, class M>
class Writer {
 public:
  __device__ __forceinline__ explicit Writer(const M& of) : memory(of) {}

  /// Each part of the rows from token `first` on, and `more` bytes that the caller copies, once nobody reads the last
  /// ones any longer.
  template <int parts>
  __device__ __forceinline__ void load_own(const Rows (&from)[parts], int first, int image, int more = 0) {
    barrier_wait(memory.owned_empty(), parity_ ^ 1);
    parity_ ^= 1;
    barrier_arrive_expecting(memory.owned_full(), M::owned * P::tile_bytes + more);
#pragma unroll
    for (int i = 0; i < M::owned; ++i) {
      load_tile<P>(memory.own(i), from[i % parts], memory.owned_full(), first + i / parts * kTokens, image);
    }
  }
  __device__ __forceinline__ void load_next(const Rows& from, int token, int image) {
    Barrier* const full = memory.full(place_.slot);
    barrier_wait(memory.empty(place_.slot), place_.parity ^ 1);
    barrier_arrive_expecting(full, P::tile_bytes);
    load_tile<P>(memory.slot(place_.slot), from, full, token, image);
    place_.advance();
  }
  /// One tile of each after the other, through all tokens.
  __device__ __forceinline__ void load_all(const Rows& first, const Rows& second, int image) {
#pragma unroll 1
    for (int token = 0; token < P::length; token += kTokens) {
      load_next(first, token, image);
      load_next(second, token, image);
    }
  }

  const M memory;

 private:
  RingPlace<M::slots> place_;
  int parity_ = 0;
};

/// A consumer's view of them.
template <class M>
class Reader {
 public:
  __device__ __forceinline__ explicit Reader(const M& of) : memory(of) {}

  /// Waits for the next tile: its slot.
  __device__ __forceinline__ int next() {
    const int slot = place_.slot;
    barrier_wait(memory.full(slot), place_.parity);
    place_.advance();
    return slot;
  }
  __device__ __forceinline__ void release(int slot) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(memory.empty(slot));
  }
  __device__ __forceinline__ void wait_for_owned() {
    barrier_wait(memory.owned_full(), parity_);
    parity_ ^= 1;
  }
  /// After wait_for_owned, so that it never waits: a branch, across which the assembler does not move arithmetic. It
  /// would wait for all products first, and compute `x` afterwards.
  template <int count>
  __device__ __forceinline__ void keep_before_wait(float (&x)[count]) const {
    multiply_registers(x);
    barrier_wait(memory.owned_full(), parity_ ^ 1);
  }
  __device__ __forceinline__ void release_owned() const { barrier_arrive(memory.owned_empty()); }

  const M memory;

 private:
  RingPlace<M::slots> place_;
  int parity_ = 0;
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
  attention_wgmma::start_weighted<128>(d, weights, matrix_descriptor(tile, 1024, kChunkBytes));
}

/// softmax(q k' / sqrt(width)) v of `consumers` tiles of queries. Exponentials are powers of two of scores times
/// `scale_log2`, log2(e) / sqrt(width).
template <class P, int consumers_, int slots_>
class Forward : public attention_wgmma::SoftmaxRows<P::sums> {
  using SoftmaxRows = attention_wgmma::SoftmaxRows<P::sums>;
  using SoftmaxRows::sums_;

 public:
  using Shared = Memory<P, consumers_, consumers_, slots_>;
  static constexpr int threads = Shared::threads, rows = kTokens * consumers_, bytes = Shared::bytes;
  static constexpr int run_count = P::sums / 4;

  /// By the producer's thread.
  __device__ __forceinline__ static void load(Writer<P, Shared>& writer, const TensorMap& qkv, const Head& head,
                                              int first) {
    writer.load_own({{qkv, head.q}}, first, head.image);
    writer.load_all({qkv, head.k}, {qkv, head.v}, head.image);
  }

  /// By all consumers.
  __device__ __forceinline__ void run(Reader<Shared>& ring, int first, float scale_log2) {
    const Shared& memory = ring.memory;
    const unsigned char* const own = memory.own(warpgroup());
    this->start(first + warpgroup() * kTokens);
    typename SoftmaxRows::Scores scores;
    const auto take_exponentials = [&](int tile) {
      constexpr int left = P::length - (P::tiles - 1) * kTokens;
      if (left < kTokens && tile + 1 == P::tiles) this->hide_missing_keys(scores, left);
      SoftmaxRows::take_exponentials(scores, scale_log2);
    };
    ring.wait_for_owned();
    int keys = ring.next();
    start_scores<P>(scores, own, memory.slot(keys));
    multiply_wait<0>();
    multiply_registers(scores);
    ring.release(keys);
    take_exponentials(0);
    unsigned p[4][4];
    round_sums(p, scores);
#pragma unroll 1
    for (int tile = 1; tile < P::tiles; ++tile) {
      const int values = ring.next();
      keys = ring.next();
      start_scores<P>(scores, own, memory.slot(keys));
      start_weighted(sums_, p, memory.slot(values));
      multiply_wait<1>();
      multiply_registers(scores);
      ring.release(keys);
      take_exponentials(tile);
      ring.keep_before_wait(scores);
      multiply_wait<0>();
      hold(p);
      multiply_registers(sums_);
      ring.release(values);
      this->shrink_sums();
      round_sums(p, scores);
    }
    ring.release_owned();
    const int values = ring.next();
    start_weighted(sums_, p, memory.slot(values));
    multiply_wait<0>();
    hold(p);
    multiply_registers(sums_);
    ring.release(values);
    this->finish();
  }
};

/// What the gradient of queries leaves for that of keys, of every query of a head: the log-sum-exp, negative and as a
/// power of two, and delta. Of missing queries, what makes probabilities zero.
template <class P>
struct QueryStatistics {
  static constexpr int count = kTokens * P::tiles, bytes = 2 * 4 * count;
  float *minus_log_sum, *delta;

  __device__ __forceinline__ explicit QueryStatistics(void* start)
      : minus_log_sum(static_cast<float*>(start)), delta(minus_log_sum + count) {}

  /// Of `of`, those of a thread's columns 8 j + 2 (lane % 4) and the next one of a tile.
  __device__ __forceinline__ static Run<float, 2> pair(const float* of, int tile, int j) {
    return *reinterpret_cast<const Run<float, 2>*>(of + tile * kTokens + j * 8 + static_cast<int>(threadIdx.x) % 4 * 2);
  }
};

/// dQ of `consumers` tiles of queries, but for the factor of the scores.
template <class P, int consumers_, int slots_>
class QueryGradient {
 public:
  using Shared = Memory<P, consumers_, 2 * consumers_, slots_>;
  static constexpr int threads = Shared::threads, rows = kTokens * consumers_, bytes = Shared::bytes;
  static constexpr int run_count = P::sums / 4;

  __device__ __forceinline__ static void load(Writer<P, Shared>& writer, const TensorMap& qkv, const TensorMap& out,
                                              const TensorMap& dout, const Head& head, int first) {
    writer.load_own({{qkv, head.q}, {dout, head.out}}, first, head.image);
#pragma unroll
    for (int i = 0; i < consumers_; ++i) writer.load_next({out, head.out}, first + i * kTokens, head.image);
    writer.load_all({qkv, head.k}, {qkv, head.v}, head.image);
  }

  /// `log_sum` and `statistics` are the head's.
  __device__ __forceinline__ void run(Reader<Shared>& ring, const float* log_sum, const QueryStatistics<P>& statistics,
                                      int first, float scale_log2) {
    const Shared& memory = ring.memory;
    const unsigned char *const own = memory.own(2 * warpgroup()), *const own_dout = memory.own(2 * warpgroup() + 1);
    first_ = first + warpgroup() * kTokens;
    log_sum += first_;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool exists = token(half) < P::length;
      minus_log_sum_[half] = exists ? -1.44269504f * log_sum[run_row(half)] : __int_as_float(0xff800000);
    }
    ring.wait_for_owned();
#pragma unroll
    for (int i = 0; i < consumers_; ++i) {
      const int out = ring.next();
      if (i == warpgroup()) sum_delta(own_dout, memory.slot(out));
      __syncwarp();
      ring.release(out);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (threadIdx.x % 4 != 0 || token(half) >= statistics.count) continue;
      statistics.minus_log_sum[first_ + run_row(half)] = minus_log_sum_[half];
      statistics.delta[first_ + run_row(half)] = delta_[half];
    }
    clear(sums_);
    float scores[32], dp[32];
    int keys = ring.next();
    start_scores<P>(scores, own, memory.slot(keys));
    int values = ring.next();
    start_scores<P>(dp, own_dout, memory.slot(values));
    multiply_wait<1>();
    multiply_registers(scores);
    take_probabilities(scores, scale_log2);
    multiply_wait<0>();
    multiply_registers(dp);
    ring.release(values);
    unsigned ds[4][4];
    take_gradients(ds, scores, dp, 0);
#pragma unroll 1
    for (int tile = 1; tile < P::tiles; ++tile) {
      const int next_keys = ring.next();
      start_scores<P>(scores, own, memory.slot(next_keys));
      start_weighted(sums_, ds, memory.slot(keys));
      const auto finish_weighted = [&] {
        hold(ds);
        multiply_registers(sums_);
        ring.release(keys);
        keys = next_keys;
      };
      // Both steps' keys and the values: of three slots, the last keys' is the values'.
      if constexpr (slots_ == 3) {
        multiply_wait<0>();
        finish_weighted();
      }
      values = ring.next();
      start_scores<P>(dp, own_dout, memory.slot(values));
      multiply_wait<slots_ == 3 ? 1 : 2>();
      multiply_registers(scores);
      take_probabilities(scores, scale_log2);
      ring.keep_before_wait(scores);
      multiply_wait<0>();
      multiply_registers(dp);
      if constexpr (slots_ > 3) finish_weighted();
      ring.release(values);
      take_gradients(ds, scores, dp, tile);
    }
    ring.release_owned();
    start_weighted(sums_, ds, memory.slot(keys));
    multiply_wait<0>();
    hold(ds);
    multiply_registers(sums_);
    ring.release(keys);
  }

  __device__ __forceinline__ Run<float, 4> query_run(int i) const { return run_of(sums_, i); }
  __device__ __forceinline__ int token(int i) const { return first_ + run_row(i); }

 private:
  /// Of the thread's two rows, a quarter each by four neighbouring threads.
  __device__ __forceinline__ void sum_delta(const unsigned char* dout, const unsigned char* out) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = run_row(half);
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < 2 * P::chunks; ++i) {
        const int piece = (i % 2 * 4 + static_cast<int>(threadIdx.x) % 4) ^ row % 8;
        const int at = i / 2 * kChunkBytes + row * 128 + piece * 16;
        const auto a = *reinterpret_cast<const Run<bf16, 8>*>(dout + at);
        const auto b = *reinterpret_cast<const Run<bf16, 8>*>(out + at);
#pragma unroll
        for (int l = 0; l < 8; ++l) sum = fmaf(widen(a[l]), widen(b[l]), sum);
      }
      delta_[half] = reduce::combine_neighbours<reduce::Sum, 4>(sum);
    }
  }

  __device__ __forceinline__ void take_probabilities(float (&scores)[32], float scale_log2) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) scores[i] = exp2_approx(fmaf(scores[i], scale_log2, minus_log_sum_[i / 2 % 2]));
  }
  __device__ __forceinline__ void take_gradients(unsigned (&ds)[4][4], float (&probabilities)[32],
                                                 const float (&dp)[32], int tile) const {
    constexpr int left = P::length - (P::tiles - 1) * kTokens;
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      const int key = i / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2;
      probabilities[i] *= dp[i] - delta_[i / 2 % 2];
      // Of a missing key, the probability may be infinite.
      if (left < kTokens && tile + 1 == P::tiles && key >= left) probabilities[i] = 0.0f;
    }
    round_sums(ds, probabilities);
  }

  int first_ = 0;
  float sums_[P::sums], minus_log_sum_[2], delta_[2];
};

/// By the producer's thread: the rows' keys and values, the statistics of all queries, and queries with dO.
template <class P, class M>
__device__ __forceinline__ void load_for_keys(Writer<P, M>& writer, const QueryStatistics<P>& to, const TensorMap& qkv,
                                              const TensorMap& dout, const float* statistics, const Head& head,
                                              int first) {
  writer.load_own({{qkv, head.k}, {qkv, head.v}}, first, head.image, to.bytes);
  bulk_load(to.minus_log_sum, statistics, writer.memory.owned_full(), to.bytes);
  writer.load_all({qkv, head.q}, {dout, head.out}, head.image);
}

/// dK, but for the factor of the scores, and dV of `consumers` tiles of keys.
template <class P, int consumers_, int slots_>
class KeyGradient {
  using Queries = QueryStatistics<P>;

 public:
  using Shared = Memory<P, consumers_, 2 * consumers_, slots_, Queries::bytes>;
  static constexpr int threads = Shared::threads, rows = kTokens * consumers_, bytes = Shared::bytes;
  static constexpr int run_count = P::sums / 4;

  __device__ __forceinline__ static void load(Writer<P, Shared>& writer, const TensorMap& qkv, const TensorMap& dout,
                                              const float* from, const Head& head, int first) {
    load_for_keys(writer, statistics_of(writer.memory), qkv, dout, from, head, first);
  }

  __device__ __forceinline__ void run(Reader<Shared>& ring, int first, float scale_log2) {
    const Shared& memory = ring.memory;
    const unsigned char *const own = memory.own(2 * warpgroup()), *const own_values = memory.own(2 * warpgroup() + 1);
    const Queries statistics = statistics_of(memory);
    first_ = first + warpgroup() * kTokens;
    clear(keys_), clear(values_);
    float scores[32], dp[32];
    ring.wait_for_owned();
    int queries = ring.next();
    start_scores<P>(scores, own, memory.slot(queries));
    int dout = ring.next();
    start_scores<P>(dp, own_values, memory.slot(dout));
    multiply_wait<1>();
    multiply_registers(scores);
    take_probabilities(scores, statistics, 0, scale_log2);
    multiply_wait<0>();
    multiply_registers(dp);
    unsigned p[4][4], ds[4][4];
    take_gradients(p, ds, scores, dp, statistics, 0);
#pragma unroll 1
    for (int tile = 1; tile < P::tiles; ++tile) {
      const int next_queries = ring.next();
      start_scores<P>(scores, own, memory.slot(next_queries));
      start_weighted(values_, p, memory.slot(dout));
      start_weighted(keys_, ds, memory.slot(queries));
      const int next_dout = ring.next();
      start_scores<P>(dp, own_values, memory.slot(next_dout));
      multiply_wait<3>();
      multiply_registers(scores);
      take_probabilities(scores, statistics, tile, scale_log2);
      ring.keep_before_wait(scores);
      multiply_wait<0>();
      hold(p), hold(ds);
      multiply_registers(values_);
      multiply_registers(keys_);
      multiply_registers(dp);
      ring.release(queries);
      ring.release(dout);
      queries = next_queries, dout = next_dout;
      take_gradients(p, ds, scores, dp, statistics, tile);
    }
    ring.release_owned();
    start_weighted(values_, p, memory.slot(dout));
    start_weighted(keys_, ds, memory.slot(queries));
    multiply_wait<0>();
    hold(p), hold(ds);
    multiply_registers(values_);
    multiply_registers(keys_);
    ring.release(queries);
    ring.release(dout);
  }

  __device__ __forceinline__ static bool has_keys() { return true; }
  __device__ __forceinline__ static bool has_values() { return true; }
  __device__ __forceinline__ Run<float, 4> key_run(int i) const { return run_of(keys_, i); }
  __device__ __forceinline__ Run<float, 4> value_run(int i) const { return run_of(values_, i); }
  __device__ __forceinline__ int token(int i) const { return first_ + run_row(i); }

 private:
  __device__ __forceinline__ static Queries statistics_of(const Shared& memory) {
    return Queries(memory.start + Shared::rest_at);
  }

  /// A missing key's probabilities may be infinite, but are in its own row alone, which nobody stores.
  __device__ __forceinline__ static void take_probabilities(float (&scores)[32], const Queries& statistics, int tile,
                                                            float scale_log2) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const auto minus_log_sum = Queries::pair(statistics.minus_log_sum, tile, j);
#pragma unroll
      for (int i = j * 4; i < j * 4 + 4; ++i) {
        scores[i] = exp2_approx(fmaf(scores[i], scale_log2, minus_log_sum[i % 2]));
      }
    }
  }
  __device__ __forceinline__ static void take_gradients(unsigned (&p)[4][4], unsigned (&ds)[4][4],
                                                        const float (&probabilities)[32], float (&dp)[32],
                                                        const Queries& statistics, int tile) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const auto delta = Queries::pair(statistics.delta, tile, j);
#pragma unroll
      for (int i = j * 4; i < j * 4 + 4; ++i) dp[i] = probabilities[i] * (dp[i] - delta[i % 2]);
    }
    round_sums(p, probabilities);
    round_sums(ds, dp);
  }

  int first_ = 0;
  float keys_[P::sums], values_[P::sums];
};

/// The same of one tile of keys, by two warpgroups.
template <class P, int slots_>
class PairedKeyGradient {
  using Queries = QueryStatistics<P>;
  static constexpr int probabilities_bytes = 128 * 32 * 4;

 public:
  using Shared = Memory<P, 2, 2, slots_, probabilities_bytes + Queries::bytes>;
  static constexpr int threads = Shared::threads, rows = kTokens, bytes = Shared::bytes;
  static constexpr int run_count = P::sums / 4;

  __device__ __forceinline__ static void load(Writer<P, Shared>& writer, const TensorMap& qkv, const TensorMap& dout,
                                              const float* from, const Head& head, int first) {
    load_for_keys(writer, statistics_of(writer.memory), qkv, dout, from, head, first);
  }

  __device__ __forceinline__ void run(Reader<Shared>& ring, int first, float scale_log2) {
    const Shared& memory = ring.memory;
    const Queries statistics = statistics_of(memory);
    auto* const probabilities = reinterpret_cast<Run<float, 4>*>(memory.start + Shared::rest_at) + threadIdx.x % 128;
    first_ = first;
    is_second_ = warpgroup() != 0;
    if (is_second_) {
      walk<true>(ring, [&](unsigned(&ds)[4][4], float(&dp)[32], int tile) {
        barrier_wait(memory.handed(), parity_);
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const Run<float, 4> p = probabilities[j * 128];
          const auto delta = Queries::pair(statistics.delta, tile, j);
#pragma unroll
          for (int i = 0; i < 4; ++i) dp[j * 4 + i] = p[i] * (dp[j * 4 + i] - delta[i % 2]);
        }
        barrier_arrive(memory.taken());
        parity_ ^= 1;
        round_sums(ds, dp);
      });
    } else {
      walk<false>(ring, [&](unsigned(&p)[4][4], float(&scores)[32], int tile) {
        barrier_wait(memory.taken(), parity_ ^ 1);  // The first time nobody has read.
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const auto minus_log_sum = Queries::pair(statistics.minus_log_sum, tile, j);
#pragma unroll
          for (int i = j * 4; i < j * 4 + 4; ++i) {
            scores[i] = exp2_approx(fmaf(scores[i], scale_log2, minus_log_sum[i % 2]));
          }
          probabilities[j * 128] = {scores[j * 4], scores[j * 4 + 1], scores[j * 4 + 2], scores[j * 4 + 3]};
        }
        barrier_arrive(memory.handed());
        parity_ ^= 1;
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
  __device__ __forceinline__ static Queries statistics_of(const Shared& memory) {
    return Queries(memory.start + Shared::rest_at + probabilities_bytes);
  }

  /// `weigh(weights, products, tile)` makes a step's weights of its products. The first warpgroup multiplies its keys
  /// with queries and weighs dO, the second its values with dO and weighs queries.
  template <bool is_second, class Weigh>
  __device__ __forceinline__ void walk(Reader<Shared>& ring, const Weigh& weigh) {
    const Shared& memory = ring.memory;
    const unsigned char* const own = memory.own(is_second ? 1 : 0);
    clear(sums_);
    float products[32];
    unsigned weights[4][4];
    ring.wait_for_owned();
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
    ring.release_owned();
    start_weighted(sums_, weights, memory.slot(is_second ? queries : dout));
    multiply_wait<0>();
    hold(weights);
    multiply_registers(sums_);
    ring.release(queries);
    ring.release(dout);
  }

  int first_ = 0;
  int parity_ = 0;  ///< Of the next probabilities that are handed over.
  bool is_second_ = false;
  float sums_[P::sums];
};

}  // namespace attention_stream
