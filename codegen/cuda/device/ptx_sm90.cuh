// Hopper's own instructions, one function each, and nothing else: what ptx.cuh is for all architectures. Three engines
// work beside the threads, each started by an instruction and waited for by another:
//
//   the copy engine     moves boxes of a tensor between global and shared memory     tensor_load, tensor_store
//   the tensor cores    multiply matrices that lie in shared memory                  multiply_bf16, multiply_tf32
//   shared barriers     count what has arrived: threads, and bytes of the copies     Barrier
//
// Both engines see shared memory in 128-byte rows whose 16-byte chunks are exchanged so that a column of chunks touches
// all banks: the chunk at byte address a is found at a ^ ((a >> 3) & 0x70). It is the address in shared memory that
// counts, not the place in a tile; so a tile may be read from any of its rows on (the taps of a convolution). Both take
// rows of 64 bytes as well, whose chunks are exchanged likewise: a is found at a ^ ((a >> 3) & 0x30).
#pragma once
#include "codegen/cuda/device/ptx.cuh"

/// A tensor in global memory and the box of it that one copy moves; made by the driver, passed as a
/// `const __grid_constant__` parameter.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

// Barriers. A barrier's phase ends when it has `count` arrivals and all bytes that were announced have been copied; the
// next phase begins at once. A wait names the phase by its parity: 0 for the first, 1 for the second, 0 for the third.
// Waiting for parity 1 before the first phase has ended passes: what a ring's producer begins with.
struct alignas(8) Barrier {
  unsigned long long state;
};
__device__ __forceinline__ void barrier_init(Barrier* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
/// After the inits, before __syncthreads: the copy engine sees them.
__device__ __forceinline__ void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
/// Arrives, and announces `bytes` that copies will bring.
__device__ __forceinline__ void barrier_arrive_expecting(Barrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ bool barrier_try_wait(Barrier* barrier, int parity) {
  unsigned done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(shared_address(barrier)), "r"(parity)
               : "memory");
  return done != 0;
}
__device__ __forceinline__ void barrier_wait(Barrier* barrier, int parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}

// Barriers of the hardware, 1 to 15 (0 is __syncthreads): `threads` in all sync or arrive, a multiple of 32.
__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The copy engine, started by one thread. Coordinates count elements from the tensor's first one, innermost first; what
// lies outside the tensor is zero where it is loaded and left out where it is stored. A box starts in shared memory at
// a multiple of 1024 bytes (of 128 bytes where the engine alone reads it again).
__device__ __forceinline__ void tensor_map_prefetch(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
__device__ __forceinline__ void tensor_load(void* to, const TensorMap& map, Barrier* barrier, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(shared_address(to)),
      "l"(&map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
__device__ __forceinline__ void tensor_load(void* to, const TensorMap& map, Barrier* barrier, int c0, int c1, int c2,
                                            int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
/// What follows each other in memory: `bytes` and both addresses are multiples of 16.
__device__ __forceinline__ void bulk_load(void* to, const void* from, Barrier* barrier, int bytes) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
__device__ __forceinline__ void tensor_store(const TensorMap& map, const void* from, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(&map),
               "r"(shared_address(from)), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
               : "memory");
}
/// Brings a box into L2.
__device__ __forceinline__ void tensor_prefetch(const TensorMap& map, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global.tile [%0, {%1, %2, %3, %4}];" ::"l"(&map), "r"(c0), "r"(c1),
               "r"(c2), "r"(c3)
               : "memory");
}
__device__ __forceinline__ void tensor_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until at most `pending` of this thread's latest groups of stores still read shared memory.
template <int pending>
__device__ __forceinline__ void tensor_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

// Clusters: blocks that run at once on processors which reach each other's shared memory, counted by their rank.
/// Waits until all threads of the cluster's blocks have come. What any of them wrote to shared memory before is seen
/// after it.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive;" ::: "memory");
  asm volatile("barrier.cluster.wait;" ::: "memory");
}
/// The same, but for what they wrote: orders no memory, and is several times as fast.
__device__ __forceinline__ void cluster_meet() {
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  asm volatile("barrier.cluster.wait;" ::: "memory");
}
/// This block's rank: read anew wherever it is asked for, so that it holds no register.
__device__ __forceinline__ int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// Where the block with this rank has what lies at `pointer` in this block's shared memory.
__device__ __forceinline__ unsigned cluster_address(const void* pointer, int rank) {
  unsigned address;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(pointer)), "r"(rank));
  return address;
}
/// 16 bytes to an address in the cluster, a multiple of 16.
__device__ __forceinline__ void cluster_store(unsigned address, float a, float b, float c, float d) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}

/// What this thread wrote to shared memory may be read by the engines after the next barrier.
__device__ __forceinline__ void fence_shared_for_engines() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Floats of a slot that engines fill or empty; `address` is one of shared memory, four are at a multiple of 16 bytes.
__device__ __forceinline__ void slot_store(unsigned address, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory");
}
__device__ __forceinline__ void slot_store(unsigned address, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
__device__ __forceinline__ float slot_load(unsigned address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}

/// A byte of a slot that engines fill.
__device__ __forceinline__ unsigned slot_load_byte(unsigned address) {
  unsigned x;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
  return x;
}

/// 8x8 matrices of 16-bit elements to shared memory, transposed: lane i gives the address of row i % 8 (16 bytes) of
/// matrix i / 8, and of each matrix elements 2 (i % 4) and + 1 of column i / 4.
__device__ __forceinline__ void stmatrix_x4_trans(void* row, unsigned r0, unsigned r1, unsigned r2, unsigned r3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
               "r"(r0), "r"(r1), "r"(r2), "r"(r3)
               : "memory");
}

// A thread's registers, for warpgroups that need more and those that need less than they started with.
template <int registers>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

/// Where a matrix of 16-bit elements, or of floats along k, lies in shared memory, as rows of 128 or 64 bytes with
/// exchanged chunks. `stride` is the distance in bytes from eight rows to the next eight. Where k runs along the rows,
/// the rows of the matrix are those of memory, and the next 16 of k (8 floats) are 32 bytes further on. Where m or n
/// runs along the rows, each row is one k, the matrix is made of chunks of a row's columns `chunk_stride` bytes apart,
/// and the next 16 of k are two strides further on.
template <int row_bytes = 128>
__device__ __forceinline__ unsigned long long matrix_descriptor(const void* start, int stride, int chunk_stride = 16) {
  static_assert(row_bytes == 128 || row_bytes == 64);
  // In a cluster an address begins with the block's rank.
  return static_cast<unsigned long long>((shared_address(start) & 0x3ffffu) >> 4) |
         static_cast<unsigned long long>(chunk_stride >> 4) << 16 | static_cast<unsigned long long>(stride >> 4) << 32 |
         (row_bytes == 128 ? 1ull : 2ull) << 62;
}
/// The same matrix `bytes` further on.
__device__ __forceinline__ unsigned long long matrix_moved(unsigned long long descriptor, int bytes) {
  return descriptor + static_cast<unsigned>(bytes >> 4);
}

// Matrix products of a warpgroup: d = a * b, or d += a * b, for 64 rows of a and n columns of b, 16 of k. Warp w of the
// four holds rows 16 w and the 15 after it; with g = lane / 4 and t = lane % 4, d[4 j], d[4 j + 1] are row g, columns
// 8 j + 2t and + 1; d[4 j + 2], d[4 j + 3] the same columns of row g + 8.
//
// Between multiply_fence and multiply_wait nothing else may touch d. multiply_registers before the first and after the
// last of them keeps the compiler from moving what it does with d into that time.
template <int count>
__device__ __forceinline__ void multiply_registers(float (&d)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
/// The same for operands in registers: they are complete before the fence that follows.
template <int count>
__device__ __forceinline__ void multiply_registers(unsigned (&a)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "+r"(a[i])::"memory");
}
/// The same where the first product forgets what d held: until then it takes no registers.
template <int count>
__device__ __forceinline__ void multiply_fresh_registers(float (&d)[count]) {
#pragma unroll
  for (int i = 0; i < count; ++i) asm volatile("" : "=f"(d[i])::"memory");
}
/// An address is computed here, and not where it is used.
__device__ __forceinline__ void compute_here(float*& address) { asm volatile("" : "+l"(address)::"memory"); }
__device__ __forceinline__ void multiply_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until at most `pending` of the latest groups are still running.
template <int pending>
__device__ __forceinline__ void multiply_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

#define DIFUSE_D8(i)                                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define DIFUSE_D32(i) DIFUSE_D8(i), DIFUSE_D8(i + 8), DIFUSE_D8(i + 16), DIFUSE_D8(i + 24)
#define DIFUSE_R0                                                                                                  \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29," \
  "%30,%31"
#define DIFUSE_R32                                                                                                \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58," \
  "%59,%60,%61,%62,%63"
#define DIFUSE_R64                                                                                                \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90," \
  "%91,%92,%93,%94,%95"
#define DIFUSE_R96                                                                                              \
  ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117," \
  "%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
/// a, b, accumulate and the two transpositions are the operands after the `registers` of d.
#define DIFUSE_WGMMA(shape, registers, a_at, b_at, accumulate_at, trans_a_at, trans_b_at)    \
  "{ .reg .pred p; setp.ne.b32 p, " accumulate_at ", 0; wgmma.mma_async.sync.aligned." shape \
  ".f32.bf16.bf16 {" registers "}, " a_at ", " b_at ", p, 1, 1, " trans_a_at ", " trans_b_at "; }"
#define DIFUSE_WGMMA_INPUTS "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(mn_major_a), "n"(mn_major_b)

/// `accumulate` false: what d held is forgotten. `mn_major_a`: m runs along the rows of a's tile in shared memory, not
/// k; `mn_major_b`: n does.
template <int mn_major_a = 0, int mn_major_b = 0>
__device__ __forceinline__ void multiply_bf16(float (&d)[32], unsigned long long a, unsigned long long b,
                                              bool accumulate) {
  asm volatile(DIFUSE_WGMMA("m64n64k16", DIFUSE_R0, "%32", "%33", "%34", "%35", "%36")
               : DIFUSE_D32(0)
               : DIFUSE_WGMMA_INPUTS);
}
template <int mn_major_a = 0, int mn_major_b = 0>
__device__ __forceinline__ void multiply_bf16(float (&d)[64], unsigned long long a, unsigned long long b,
                                              bool accumulate) {
  asm volatile(DIFUSE_WGMMA("m64n128k16", DIFUSE_R0 DIFUSE_R32, "%64", "%65", "%66", "%67", "%68")
               : DIFUSE_D32(0), DIFUSE_D32(32)
               : DIFUSE_WGMMA_INPUTS);
}
template <int mn_major_a = 0, int mn_major_b = 0>
__device__ __forceinline__ void multiply_bf16(float (&d)[96], unsigned long long a, unsigned long long b,
                                              bool accumulate) {
  asm volatile(DIFUSE_WGMMA("m64n192k16", DIFUSE_R0 DIFUSE_R32 DIFUSE_R64, "%96", "%97", "%98", "%99", "%100")
               : DIFUSE_D32(0), DIFUSE_D32(32), DIFUSE_D32(64)
               : DIFUSE_WGMMA_INPUTS);
}
template <int mn_major_a = 0, int mn_major_b = 0>
__device__ __forceinline__ void multiply_bf16(float (&d)[128], unsigned long long a, unsigned long long b,
                                              bool accumulate) {
  asm volatile(
      DIFUSE_WGMMA("m64n256k16", DIFUSE_R0 DIFUSE_R32 DIFUSE_R64 DIFUSE_R96, "%128", "%129", "%130", "%131", "%132")
      : DIFUSE_D32(0), DIFUSE_D32(32), DIFUSE_D32(64), DIFUSE_D32(96)
      : DIFUSE_WGMMA_INPUTS);
}

/// The same for 8 of k in tf32: floats whose low 13 bits are ignored. k runs along the rows of both tiles.
#define DIFUSE_WGMMA_TF32(shape, registers, a_at, b_at, accumulate_at)                       \
  "{ .reg .pred p; setp.ne.b32 p, " accumulate_at ", 0; wgmma.mma_async.sync.aligned." shape \
  ".f32.tf32.tf32 {" registers "}, " a_at ", " b_at ", p, 1, 1; }"
#define DIFUSE_WGMMA_TF32_INPUTS "l"(a), "l"(b), "r"(static_cast<int>(accumulate))
__device__ __forceinline__ void multiply_tf32(float (&d)[32], unsigned long long a, unsigned long long b,
                                              bool accumulate) {
  asm volatile(DIFUSE_WGMMA_TF32("m64n64k8", DIFUSE_R0, "%32", "%33", "%34")
               : DIFUSE_D32(0)
               : DIFUSE_WGMMA_TF32_INPUTS);
}
__device__ __forceinline__ void multiply_tf32(float (&d)[64], unsigned long long a, unsigned long long b,
                                              bool accumulate) {
  asm volatile(DIFUSE_WGMMA_TF32("m64n128k8", DIFUSE_R0 DIFUSE_R32, "%64", "%65", "%66")
               : DIFUSE_D32(0), DIFUSE_D32(32)
               : DIFUSE_WGMMA_TF32_INPUTS);
}
__device__ __forceinline__ void multiply_tf32(float (&d)[128], unsigned long long a, unsigned long long b,
                                              bool accumulate) {
  asm volatile(DIFUSE_WGMMA_TF32("m64n256k8", DIFUSE_R0 DIFUSE_R32 DIFUSE_R64 DIFUSE_R96, "%128", "%129", "%130")
               : DIFUSE_D32(0), DIFUSE_D32(32), DIFUSE_D32(64), DIFUSE_D32(96)
               : DIFUSE_WGMMA_TF32_INPUTS);
}

#define DIFUSE_D16(i) DIFUSE_D8(i), DIFUSE_D8(i + 8)
#define DIFUSE_R16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
template <int mn_major_a = 0, int mn_major_b = 0>
__device__ __forceinline__ void multiply_bf16(float (&d)[16], unsigned long long a, unsigned long long b,
                                              bool accumulate) {
  asm volatile(DIFUSE_WGMMA("m64n32k16", DIFUSE_R16, "%16", "%17", "%18", "%19", "%20")
               : DIFUSE_D16(0)
               : DIFUSE_WGMMA_INPUTS);
}

/// a from registers, d += a * b: of the warp's 16 rows each thread has what ptx.cuh says of m16n8k16. Until
/// multiply_wait nothing may write to them.
#define DIFUSE_WGMMA_HELD(shape, registers, a_at, b_at, trans_b_at)                                                   \
  "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" registers "}, {" a_at \
  "}, " b_at ", p, 1, 1, " trans_b_at "; }"
#define DIFUSE_WGMMA_HELD_INPUTS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(mn_major_b)
template <int mn_major_b = 0>
__device__ __forceinline__ void multiply_bf16(float (&d)[16], const unsigned (&a)[4], unsigned long long b) {
  asm volatile(DIFUSE_WGMMA_HELD("m64n32k16", DIFUSE_R16, "%16, %17, %18, %19", "%20", "%21")
               : DIFUSE_D16(0)
               : DIFUSE_WGMMA_HELD_INPUTS);
}
template <int mn_major_b = 0>
__device__ __forceinline__ void multiply_bf16(float (&d)[32], const unsigned (&a)[4], unsigned long long b) {
  asm volatile(DIFUSE_WGMMA_HELD("m64n64k16", DIFUSE_R0, "%32, %33, %34, %35", "%36", "%37")
               : DIFUSE_D32(0)
               : DIFUSE_WGMMA_HELD_INPUTS);
}
template <int mn_major_b = 0>
__device__ __forceinline__ void multiply_bf16(float (&d)[64], const unsigned (&a)[4], unsigned long long b) {
  asm volatile(DIFUSE_WGMMA_HELD("m64n128k16", DIFUSE_R0 DIFUSE_R32, "%64, %65, %66, %67", "%68", "%69")
               : DIFUSE_D32(0), DIFUSE_D32(32)
               : DIFUSE_WGMMA_HELD_INPUTS);
}
template <int mn_major_b = 0>
__device__ __forceinline__ void multiply_bf16(float (&d)[128], const unsigned (&a)[4], unsigned long long b) {
  asm volatile(DIFUSE_WGMMA_HELD("m64n256k16", DIFUSE_R0 DIFUSE_R32 DIFUSE_R64 DIFUSE_R96, "%128, %129, %130, %131",
                                 "%132", "%133")
               : DIFUSE_D32(0), DIFUSE_D32(32), DIFUSE_D32(64), DIFUSE_D32(96)
               : DIFUSE_WGMMA_HELD_INPUTS);
}

/// The same in tf32: of the warp's 16 rows each thread has what ptx.cuh says of m16n8k8.
#define DIFUSE_WGMMA_TF32_HELD(shape, registers, a_at, b_at)                               \
  "{ .reg .pred p; setp.ne.b32 p, 1, 0; wgmma.mma_async.sync.aligned." shape               \
  ".f32.tf32.tf32 {" registers "}, {" a_at "}, " b_at ", p, 1, 1; }"
#define DIFUSE_WGMMA_TF32_HELD_INPUTS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)
__device__ __forceinline__ void multiply_tf32(float (&d)[32], const unsigned (&a)[4], unsigned long long b) {
  asm volatile(DIFUSE_WGMMA_TF32_HELD("m64n64k8", DIFUSE_R0, "%32, %33, %34, %35", "%36")
               : DIFUSE_D32(0)
               : DIFUSE_WGMMA_TF32_HELD_INPUTS);
}
__device__ __forceinline__ void multiply_tf32(float (&d)[64], const unsigned (&a)[4], unsigned long long b) {
  asm volatile(DIFUSE_WGMMA_TF32_HELD("m64n128k8", DIFUSE_R0 DIFUSE_R32, "%64, %65, %66, %67", "%68")
               : DIFUSE_D32(0), DIFUSE_D32(32)
               : DIFUSE_WGMMA_TF32_HELD_INPUTS);
}
__device__ __forceinline__ void multiply_tf32(float (&d)[96], const unsigned (&a)[4], unsigned long long b) {
  asm volatile(DIFUSE_WGMMA_TF32_HELD("m64n192k8", DIFUSE_R0 DIFUSE_R32 DIFUSE_R64, "%96, %97, %98, %99", "%100")
               : DIFUSE_D32(0), DIFUSE_D32(32), DIFUSE_D32(64)
               : DIFUSE_WGMMA_TF32_HELD_INPUTS);
}

#undef DIFUSE_D8
#undef DIFUSE_D16
#undef DIFUSE_R16
#undef DIFUSE_WGMMA_HELD
#undef DIFUSE_WGMMA_HELD_INPUTS
#undef DIFUSE_D32
#undef DIFUSE_R0
#undef DIFUSE_R32
#undef DIFUSE_R64
#undef DIFUSE_R96
#undef DIFUSE_WGMMA
#undef DIFUSE_WGMMA_INPUTS
#undef DIFUSE_WGMMA_TF32
#undef DIFUSE_WGMMA_TF32_INPUTS
#undef DIFUSE_WGMMA_TF32_HELD
#undef DIFUSE_WGMMA_TF32_HELD_INPUTS
