// Stands in for codegen/cuda/device/ptx.cuh in emulated kernels: the same functions, with what each instruction does
// written out or asked of the emulator.
#pragma once

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return emulator::machine->shared_address(pointer);
}

__device__ __forceinline__ unsigned computed_here(unsigned x) { return x; }

namespace emulated {

/// To nearest, ties to even.
inline unsigned bf16_of(float x) {
  const unsigned bits = __float_as_uint(x);
  if (x != x) return 0x7fffu;
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
inline unsigned f16_of(float x) {
  if (x != x) return 0x7fffu;
  return __builtin_bit_cast(unsigned short, static_cast<_Float16>(x));
}

inline float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

inline void mma(emulator::Collective collective, float* d, const void* a, const void* b) {
  emulator::Part part;
  part.d = d;
  part.a = static_cast<const unsigned*>(a);
  part.b = static_cast<const unsigned*>(b);
  emulator::machine->meet(collective, ~0u, part);
}
inline void ldmatrix(emulator::Collective collective, unsigned* r, const void* row) {
  emulator::Part part;
  part.r = r;
  part.row = row;
  emulator::machine->meet(collective, ~0u, part);
}

}  // namespace emulated

__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
  return emulated::bf16_of(high) << 16 | emulated::bf16_of(low);
}
__device__ __forceinline__ unsigned pack_f16(float low, float high) {
  return emulated::f16_of(high) << 16 | emulated::f16_of(low);
}
__device__ __forceinline__ float unpack_f16(unsigned bits) {
  return static_cast<float>(__builtin_bit_cast(_Float16, static_cast<unsigned short>(bits)));
}
__device__ __forceinline__ float round_to_tf32(float x) {
  const unsigned bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x != x ? __uint_as_float(0x7fffffffu) : x;
  return __uint_as_float((bits + 0x1000u) & ~0x1fffu);
}

__device__ __forceinline__ float exp2_approx(float x) { return emulated::flushed(exp2f(emulated::flushed(x))); }
__device__ __forceinline__ float reciprocal_approx(float x) { return emulated::flushed(1.0f / emulated::flushed(x)); }

__device__ __forceinline__ void mma_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emulated::mma(emulator::Collective::mma_bf16, d, a, b);
}
__device__ __forceinline__ void mma_f16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  emulated::mma(emulator::Collective::mma_f16, d, a, b);
}
__device__ __forceinline__ void mma_tf32(float (&d)[4], const float (&a)[4], const float (&b)[2]) {
  emulated::mma(emulator::Collective::mma_tf32, d, a, b);
}

__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* row) {
  emulated::ldmatrix(emulator::Collective::ldmatrix, r, row);
}
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], const void* row) {
  emulated::ldmatrix(emulator::Collective::ldmatrix_trans, r, row);
}

__device__ __forceinline__ void copy_async_16(void* to, const void* from, bool valid) {
  emulator::machine->copy_async(to, from, 16, valid);
}
__device__ __forceinline__ void copy_async_8(void* to, const void* from, bool valid) {
  emulator::machine->copy_async(to, from, 8, valid);
}
__device__ __forceinline__ void copy_async_4(void* to, const void* from, bool valid) {
  emulator::machine->copy_async(to, from, 4, valid);
}
__device__ __forceinline__ void copy_async_commit() { emulator::machine->copy_async_commit(); }
template <int pending>
__device__ __forceinline__ void copy_async_wait() {
  emulator::machine->copy_async_wait(pending);
}

/// Before the wait: whether what was complete before the previous kernel began may be read (join/overlap.h puts the
/// launch's own answer here). A kernel by itself has none before it.
__device__ __forceinline__ constexpr bool may_read_early() { return true; }
__device__ __forceinline__ void wait_for_previous_kernel() {}
__device__ __forceinline__ void let_next_kernel_start() {}
