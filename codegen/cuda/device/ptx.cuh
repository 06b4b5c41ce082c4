// The instructions that CUDA C++ has no name for, one function each, and nothing else: every `asm` of the project's
// device code is in this file. The tests run kernels on the CPU with this file replaced by one that computes the same.
#pragma once

/// A shared-memory address as instructions take it.
__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

/// x. What is made of it is computed where it is written, not once before a loop, to be kept in registers.
__device__ __forceinline__ unsigned computed_here(unsigned x) {
  asm volatile("" : "+r"(x));
  return x;
}

// Rounding. Both to nearest; bf16 ties to even, tf32 ties away from zero.
/// Two floats as bf16, `low` in the low half.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  unsigned packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
/// Two floats as f16, `low` in the low half.
__device__ __forceinline__ unsigned pack_f16(float low, float high) {
  unsigned packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
/// The f16 in the low half of `bits` as a float.
__device__ __forceinline__ float unpack_f16(unsigned bits) {
  float wide;
  asm("{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }" : "=f"(wide) : "r"(bits));
  return wide;
}
__device__ __forceinline__ float round_to_tf32(float x) {
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return __uint_as_float(bits);
}

// The special-function unit. Subnormal operands and results are zeros.
/// 2^x, within 2 ulp.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// 1 / x, within 1 ulp.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Matrix products of a warp: d += a * b, accumulated in fp32. With g = lane / 4 and t = lane % 4, d[0], d[1] are row g,
// columns 2t, 2t + 1; d[2], d[3] the same columns of row g + 8.
/// m16n8k16: a[0] holds (row g, k 2t and 2t + 1), a[1] (g + 8, same), a[2] (g, k + 8), a[3] (g + 8, k + 8);
/// b[0] holds (k 2t and 2t + 1, column g), b[1] (k + 8, same).
__device__ __forceinline__ void mma_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/// The same with f16 operands.
__device__ __forceinline__ void mma_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/// m16n8k8 with tf32 operands (floats whose low 13 bits are ignored): a[0] is (row g, k t), a[1] (g + 8, t), a[2]
/// (g, t + 4), a[3] (g + 8, t + 4); b[0] is (k t, column g), b[1] (t + 4, g).
__device__ __forceinline__ void mma_tf32(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
        "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

// 8x8 matrices of 16-bit elements from shared memory. Lane i gives the address of row i % 8 (16 bytes) of matrix i / 8;
// lane i receives, of each matrix, elements 2 (i % 4) and + 1 of row i / 4; with _trans, of column i / 4.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

// Copies from global to shared memory that run on their own; both addresses are multiples of the size. Where `valid` is
// false nothing is read and zeros are written.
__device__ __forceinline__ void copy_async_16(void* to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_8(void* to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 8 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_4(void* to, const void* from, bool valid) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(valid ? 4 : 0)
               : "memory");
}
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most `pending` of this thread's latest groups are still running.
template <int pending>
__device__ __forceinline__ void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/// Before the wait: whether what was complete before the previous kernel began may be read (join/overlap.h puts the
/// launch's own answer here). A kernel by itself has none before it.
__device__ __forceinline__ constexpr bool may_read_early() { return true; }
// Programmatic dependent launch. Before the wait, a kernel touches no global memory that another kernel writes; what
// waits at its end, none that the kernels which may run beside it touch (join/overlap.h).
__device__ __forceinline__ void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
