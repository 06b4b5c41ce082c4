// Stands in for codegen/cuda/device/ptx_sm90.cuh in emulated kernels: the same functions. The engines do at once what
// they are told, but load as late as they can; a wait that would not pass lets the other threads run.
#pragma once

struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};
struct alignas(8) Barrier {
  short count, pending;
  int bytes : 31;  ///< Announced and not yet copied.
  unsigned parity : 1;
};

namespace emulated {

// What the engines read and write is not instrumented: barriers that the checker does not know order it.
#define EMULATED_ENGINE __attribute__((noinline, no_sanitize("thread"))) inline

EMULATED_ENGINE void advance(Barrier* barrier, int arrivals, int bytes) {
  barrier->pending -= arrivals;
  barrier->bytes += bytes;
  if (barrier->pending < 0) emulator::machine->fail("more come to a barrier than it counts", nullptr, 0);
  emulator::machine->progress();
  if (barrier->pending != 0 || barrier->bytes != 0) return;
  barrier->pending = barrier->count;
  barrier->parity ^= 1u;
}
EMULATED_ENGINE bool has_passed(const Barrier* barrier, int parity) {
  return barrier->parity != static_cast<unsigned>(parity);
}

/// Where instructions find the byte that lies at this address in a tile whose chunks are not exchanged.
EMULATED_ENGINE unsigned exchanged(unsigned address, unsigned row_bytes = 128) {
  return address ^ (address >> 3 & (row_bytes - 16));
}

/// Between a box of a tensor in global memory and shared memory at `shared`.
EMULATED_ENGINE int copy_box(const TensorMap& map, const void* shared, const int (&at)[5], bool is_load) {
  const auto content = __builtin_bit_cast(emulator::TensorMapContent, map);
  const unsigned first = emulator::machine->shared_address(shared);
  if (first % 128 != 0)
    emulator::machine->fail("a box of a tensor that starts at no multiple of 128 bytes", nullptr, 0);
  unsigned boxes = 1;
  const auto extent = [&](int d) { return (content.box[d] + content.steps[d] - 1u) / content.steps[d]; };
  for (int d = 1; d < content.rank; ++d) boxes *= extent(d);
  const unsigned row_bytes = content.box[0] * content.element_bytes;
  if (row_bytes != 128 && row_bytes != 64) emulator::machine->fail("a box of other rows than 128 or 64 bytes", nullptr, 0);
  for (unsigned row = 0; row < boxes; ++row) {
    unsigned char* line = content.start;
    bool inside = true;
    unsigned rest = row;
    for (int d = 1; d < content.rank; ++d) {
      const long long c = at[d] + static_cast<long long>(rest % extent(d)) * content.steps[d];
      rest /= extent(d);
      inside = inside && c >= 0 && c < static_cast<long long>(content.extents[d]);
      line += c * static_cast<long long>(content.strides[d - 1]);
    }
    for (unsigned i = 0; i < content.box[0]; ++i) {
      const long long c = at[0] + static_cast<long long>(i);
      const bool is_there = inside && c >= 0 && c < static_cast<long long>(content.extents[0]);
      unsigned char* const to = emulator::machine->shared_pointer(
          exchanged(first + row * row_bytes + i * content.element_bytes, row_bytes), content.element_bytes);
      unsigned char* const element = line + c * content.element_bytes;
      for (unsigned b = 0; b < content.element_bytes; ++b) {
        if (is_load) {
          to[b] = is_there ? element[b] : 0;
        } else if (is_there) {
          element[b] = to[b];
        }
      }
    }
  }
  return static_cast<int>(boxes * row_bytes);
}

struct Load {
  TensorMap map;
  void* to;
  Barrier* barrier;
  int at[5];
};
inline void run_load(const emulator::Errand& errand) {
  Load load;
  __builtin_memcpy(&load, errand.data, sizeof load);
  advance(load.barrier, 0, -copy_box(load.map, load.to, load.at, true));
}
struct BulkLoad {
  void* to;
  const void* from;
  Barrier* barrier;
  int bytes;
};
inline void run_bulk_load(const emulator::Errand& errand) {
  BulkLoad load;
  __builtin_memcpy(&load, errand.data, sizeof load);
  __builtin_memcpy(load.to, load.from, static_cast<unsigned>(load.bytes));
  advance(load.barrier, 0, -load.bytes);
}

inline void load_box(void* to, const TensorMap& map, Barrier* barrier, const int (&at)[5]) {
  const Load load{map, to, barrier, {at[0], at[1], at[2], at[3], at[4]}};
  emulator::Errand errand{run_load, {}};
  static_assert(sizeof load <= sizeof errand.data);
  __builtin_memcpy(errand.data, &load, sizeof load);
  emulator::machine->defer(errand);
}

/// A matrix in shared memory, as a descriptor says.
struct Matrix {
  unsigned start, chunk_stride, stride, row_bytes;
  bool k_major;
};
EMULATED_ENGINE Matrix matrix_of(unsigned long long descriptor, bool k_major) {
  const auto bytes = [descriptor](int from) { return static_cast<unsigned>(descriptor >> from & 0x3fffu) << 4; };
  return {bytes(0), bytes(16), bytes(32), descriptor >> 62 == 1 ? 128u : 64u, k_major};
}
EMULATED_ENGINE float element(const Matrix& m, unsigned row, unsigned k) {
  const unsigned columns = m.row_bytes / 2;  // Of a chunk.
  const unsigned place =
      m.k_major ? row / 8 * m.stride + row % 8 * m.row_bytes + k * 2
                : row / columns * m.chunk_stride + k / 8 * m.stride + k % 8 * m.row_bytes + row % columns * 2;
  const auto* const half = reinterpret_cast<const unsigned short*>(
      emulator::machine->shared_pointer(exchanged(m.start + place, m.row_bytes), 2));
  return __uint_as_float(static_cast<unsigned>(*half) << 16);
}

/// This thread's results of a warpgroup's product with two rows of a.
EMULATED_ENGINE void multiply_rows(float* d, unsigned columns, const float (&rows)[2][16], const Matrix& b,
                                   bool accumulate) {
  const unsigned lane = emulator::machine->lane;
  for (unsigned i = 0; i < columns / 4; ++i) {
    float column[16];
    for (unsigned k = 0; k < 16; ++k) column[k] = element(b, i / 2 * 8 + lane % 4 * 2 + i % 2, k);
    for (unsigned half = 0; half < 2; ++half) {
      float& sum = d[i / 2 * 4 + half * 2 + i % 2];
      double exact = accumulate ? static_cast<double>(sum) : 0.0;
      for (unsigned k = 0; k < 16; ++k) exact += static_cast<double>(rows[half][k]) * static_cast<double>(column[k]);
      sum = static_cast<float>(exact);
    }
  }
}

EMULATED_ENGINE void multiply(float* d, unsigned columns, const Matrix& a, const Matrix& b, bool accumulate) {
  const unsigned lane = emulator::machine->lane, warp = emulator::machine->thread_index.x / 32 % 4;
  float rows[2][16];
  for (unsigned i = 0; i < 32; ++i) rows[i / 16][i % 16] = element(a, warp * 16 + lane / 4 + i / 16 * 8, i % 16);
  multiply_rows(d, columns, rows, b, accumulate);
}

EMULATED_ENGINE double tf32_of(unsigned bits) { return static_cast<double>(__uint_as_float(bits & ~0x1fffu)); }
EMULATED_ENGINE double float_element(const Matrix& m, unsigned row, unsigned k) {
  const unsigned place = m.start + row / 8 * m.stride + row % 8 * m.row_bytes + k * 4;
  return tf32_of(*reinterpret_cast<const unsigned*>(
      emulator::machine->shared_pointer(exchanged(place, m.row_bytes), 4)));
}

/// The same of floats with k along the rows, 8 of k in tf32, which cuts off what it adds.
EMULATED_ENGINE void multiply_float_rows(float* d, unsigned columns, const double (&rows)[2][8], const Matrix& b,
                                         bool accumulate) {
  const unsigned lane = emulator::machine->lane;
  for (unsigned i = 0; i < columns / 4; ++i) {
    double column[8], addends[9];
    for (unsigned k = 0; k < 8; ++k) column[k] = float_element(b, i / 2 * 8 + lane % 4 * 2 + i % 2, k);
    for (unsigned half = 0; half < 2; ++half) {
      float& sum = d[i / 2 * 4 + half * 2 + i % 2];
      for (unsigned k = 0; k < 8; ++k) addends[k] = rows[half][k] * column[k];
      addends[8] = accumulate ? static_cast<double>(sum) : 0.0;
      sum = emulator::machine->tensor_core_sum(addends, 9);
    }
  }
}

EMULATED_ENGINE void multiply_floats(float* d, unsigned columns, const Matrix& a, const Matrix& b, bool accumulate) {
  const unsigned lane = emulator::machine->lane, warp = emulator::machine->thread_index.x / 32 % 4;
  double rows[2][8];
  for (unsigned i = 0; i < 16; ++i) rows[i / 8][i % 8] = float_element(a, warp * 16 + lane / 4 + i / 8 * 8, i % 8);
  multiply_float_rows(d, columns, rows, b, accumulate);
}
inline void multiply_held_floats(float* d, unsigned columns, const unsigned (&a)[4], const Matrix& b) {
  double rows[2][8];
  for (int i = 0; i < 4; ++i) {
    for (int owner = 0; owner < 4; ++owner) {
      rows[i % 2][i / 2 * 4 + owner] = tf32_of(__shfl_sync(~0u, a[i], owner, 4));
    }
  }
  multiply_float_rows(d, columns, rows, b, true);
}

/// The same, each thread of a quad holding some of a's columns.
inline void multiply_held(float* d, unsigned columns, const unsigned (&a)[4], const Matrix& b) {
  float rows[2][16];
  for (int i = 0; i < 4; ++i) {
    for (int owner = 0; owner < 4; ++owner) {
      const unsigned pair = __shfl_sync(~0u, a[i], owner, 4);
      float* const to = &rows[i % 2][i / 2 * 8 + owner * 2];
      to[0] = __uint_as_float(pair << 16);
      to[1] = __uint_as_float(pair & 0xffff0000u);
    }
  }
  multiply_rows(d, columns, rows, b, true);
}

}  // namespace emulated

EMULATED_ENGINE void barrier_init(Barrier* barrier, int count) {
  *barrier = {static_cast<short>(count), static_cast<short>(count), 0, 0};
}
inline void barrier_init_done() {}
inline void barrier_arrive(Barrier* barrier) { emulated::advance(barrier, 1, 0); }
inline void barrier_arrive_expecting(Barrier* barrier, int bytes) { emulated::advance(barrier, 1, bytes); }
inline bool barrier_try_wait(Barrier* barrier, int parity) {
  if (emulated::has_passed(barrier, parity)) return true;
  emulator::machine->wait_for_progress();
  return emulated::has_passed(barrier, parity);
}
inline void barrier_wait(Barrier* barrier, int parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

inline void named_barrier_sync(int id, int threads) { emulator::machine->named_barrier(id, threads, true); }
inline void named_barrier_arrive(int id, int threads) { emulator::machine->named_barrier(id, threads, false); }

inline void cluster_sync() { emulator::machine->meet_cluster(); }
inline void cluster_meet() { emulator::machine->meet_cluster(); }
inline int cluster_rank() { return static_cast<int>(emulator::machine->cluster_rank); }
inline unsigned cluster_address(const void* pointer, int rank) {
  const unsigned address = emulator::machine->shared_address(pointer);
  return address % (1u << emulator::kRankBit) + (static_cast<unsigned>(rank) << emulator::kRankBit);
}
EMULATED_ENGINE void cluster_store(unsigned address, float a, float b, float c, float d) {
  if (address % 16 != 0) emulator::machine->fail("16 bytes to an address that is no multiple of 16", nullptr, 0);
  auto* const to = reinterpret_cast<float*>(emulator::machine->cluster_pointer(address, 16));
  to[0] = a, to[1] = b, to[2] = c, to[3] = d;
}

inline void tensor_map_prefetch(const TensorMap&) {}
inline void tensor_load(void* to, const TensorMap& map, Barrier* barrier, int c0, int c1, int c2) {
  emulated::load_box(to, map, barrier, {c0, c1, c2, 0, 0});
}
inline void tensor_load(void* to, const TensorMap& map, Barrier* barrier, int c0, int c1, int c2, int c3) {
  emulated::load_box(to, map, barrier, {c0, c1, c2, c3, 0});
}
inline void bulk_load(void* to, const void* from, Barrier* barrier, int bytes) {
  if (shared_address(to) % 16 != 0 || reinterpret_cast<unsigned long long>(from) % 16 != 0 || bytes % 16 != 0) {
    emulator::machine->fail("a bulk copy of what is no multiple of 16", nullptr, 0);
  }
  const emulated::BulkLoad load{to, from, barrier, bytes};
  emulator::Errand errand{emulated::run_bulk_load, {}};
  static_assert(sizeof load <= sizeof errand.data);
  __builtin_memcpy(errand.data, &load, sizeof load);
  emulator::machine->defer(errand);
}
inline void tensor_store(const TensorMap& map, const void* from, int c0, int c1, int c2, int c3) {
  emulated::copy_box(map, from, {c0, c1, c2, c3, 0}, false);
}
inline void tensor_prefetch(const TensorMap&, int, int, int, int) {}
inline void tensor_store_commit() {}
template <int pending>
inline void tensor_store_wait_read() {}
inline void fence_shared_for_engines() {}

EMULATED_ENGINE void slot_store(unsigned address, float x) {
  *reinterpret_cast<float*>(emulator::machine->shared_pointer(address, 4)) = x;
}
EMULATED_ENGINE void slot_store(unsigned address, float a, float b, float c, float d) {
  if (address % 16 != 0) emulator::machine->fail("16 bytes to an address that is no multiple of 16", nullptr, 0);
  auto* const to = reinterpret_cast<float*>(emulator::machine->shared_pointer(address, 16));
  to[0] = a, to[1] = b, to[2] = c, to[3] = d;
}
EMULATED_ENGINE float slot_load(unsigned address) {
  return *reinterpret_cast<const float*>(emulator::machine->shared_pointer(address, 4));
}

EMULATED_ENGINE unsigned slot_load_byte(unsigned address) {
  return *emulator::machine->shared_pointer(address, 1);
}

inline void stmatrix_x4_trans(void* row, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
  unsigned r[4] = {r0, r1, r2, r3};
  emulated::ldmatrix(emulator::Collective::stmatrix_trans, r, row);
}

template <int registers>
inline void take_registers() {}
template <int registers>
inline void give_registers() {}

template <int row_bytes = 128>
inline unsigned long long matrix_descriptor(const void* start, int stride, int chunk_stride = 16) {
  static_assert(row_bytes == 128 || row_bytes == 64);
  return static_cast<unsigned long long>((shared_address(start) & 0x3ffffu) >> 4) |
         static_cast<unsigned long long>(chunk_stride >> 4) << 16 | static_cast<unsigned long long>(stride >> 4) << 32 |
         (row_bytes == 128 ? 1ull : 2ull) << 62;
}
inline unsigned long long matrix_moved(unsigned long long descriptor, int bytes) {
  return descriptor + static_cast<unsigned>(bytes >> 4);
}

template <int count>
inline void multiply_registers(float (&)[count]) {}
template <int count>
inline void multiply_registers(unsigned (&)[count]) {}
inline void compute_here(float*&) {}
template <int count>
inline void multiply_fresh_registers(float (&d)[count]) {
  for (float& x : d) x = __int_as_float(0x7fffffff);
}
inline void multiply_fence() {}
inline void multiply_commit() {}
/// A warp's lanes stay together, so that none frees what another has still to read.
template <int pending>
inline void multiply_wait() {
  emulator::meet(emulator::Collective::any, ~0u, 0);
}
template <int mn_major_a = 0, int mn_major_b = 0, int sums>
inline void multiply_bf16(float (&d)[sums], unsigned long long a, unsigned long long b, bool accumulate) {
  static_assert(sums == 16 || sums == 32 || sums == 64 || sums == 96 || sums == 128);
  emulated::multiply(d, sums * 2, emulated::matrix_of(a, mn_major_a == 0), emulated::matrix_of(b, mn_major_b == 0),
                     accumulate);
}
template <int mn_major_b = 0, int sums>
inline void multiply_bf16(float (&d)[sums], const unsigned (&a)[4], unsigned long long b) {
  static_assert(sums == 16 || sums == 32 || sums == 64 || sums == 128);
  emulated::multiply_held(d, sums * 2, a, emulated::matrix_of(b, mn_major_b == 0));
}
template <int sums>
inline void multiply_tf32(float (&d)[sums], unsigned long long a, unsigned long long b, bool accumulate) {
  static_assert(sums == 32 || sums == 64 || sums == 128);
  emulated::multiply_floats(d, sums * 2, emulated::matrix_of(a, true), emulated::matrix_of(b, true), accumulate);
}
template <int sums>
inline void multiply_tf32(float (&d)[sums], const unsigned (&a)[4], unsigned long long b) {
  static_assert(sums == 32 || sums == 64 || sums == 96);
  emulated::multiply_held_floats(d, sums * 2, a, emulated::matrix_of(b, true));
}
