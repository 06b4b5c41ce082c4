// CUDA C++ as far as the project's kernels use it, for an ordinary C++ compiler. It stands between machine.cuh and the
// kernel's source in every emulated kernel: no includes, since compiling them would take longer than the kernel itself.
#pragma once

namespace emulator {
static Machine* machine;
alignas(1024) static unsigned char dynamic_shared[kDynamicShared + kSharedMargin];
}  // namespace emulator
extern "C" {
extern unsigned char __start_emulated_shared[] __attribute__((weak, visibility("hidden")));
extern unsigned char __stop_emulated_shared[] __attribute__((weak, visibility("hidden")));
extern const unsigned char __ehdr_start[] __attribute__((visibility("hidden")));
extern const unsigned char _end[] __attribute__((visibility("hidden")));
}

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
// A section of its own tells where they lie. `extern __shared__` was replaced before.
#define __shared__ static __attribute__((section("emulated_shared")))
#define __builtin_assume(condition) ((void)0)
#define __CUDACC__ 1
#define __CUDACC_RTC__ 1

using size_t = decltype(sizeof(0));

using dim3 = emulator::Index3;
using uint3 = emulator::Index3;
#define threadIdx (static_cast<const emulator::Index3&>(emulator::machine->thread_index))
#define blockIdx (static_cast<const emulator::Index3&>(emulator::machine->block_index))
#define blockDim (static_cast<const emulator::Index3&>(emulator::machine->block_size))
#define gridDim (static_cast<const emulator::Index3&>(emulator::machine->grid_size))
#define warpSize 32

#define EMULATOR_VECTOR(type, name, align2, align4)            \
  struct alignas(align2) name##2 { type x, y; };                 \
  struct alignas(align4) name##4 { type x, y, z, w; };           \
  inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
  inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
EMULATOR_VECTOR(signed char, char, 2, 4)
EMULATOR_VECTOR(unsigned char, uchar, 2, 4)
EMULATOR_VECTOR(short, short, 4, 8)
EMULATOR_VECTOR(unsigned short, ushort, 4, 8)
EMULATOR_VECTOR(int, int, 8, 16)
EMULATOR_VECTOR(unsigned, uint, 8, 16)
EMULATOR_VECTOR(float, float, 8, 16)
EMULATOR_VECTOR(long long, longlong, 16, 16)
EMULATOR_VECTOR(unsigned long long, ulonglong, 16, 16)
EMULATOR_VECTOR(double, double, 16, 16)
#undef EMULATOR_VECTOR
struct float3 { float x, y, z; };
struct int3 { int x, y, z; };
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
inline int3 make_int3(int x, int y, int z) { return {x, y, z}; }
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }

// Mathematics: the C library's, which differs from the device's by a few units in the last place.
#define EMULATOR_UNARY(name)      \
  extern "C" double name(double); \
  extern "C" float name##f(float); \
  inline float name(float x) { return name##f(x); }
EMULATOR_UNARY(exp)
EMULATOR_UNARY(exp2)
EMULATOR_UNARY(expm1)
EMULATOR_UNARY(log)
EMULATOR_UNARY(log2)
EMULATOR_UNARY(log10)
EMULATOR_UNARY(log1p)
EMULATOR_UNARY(sqrt)
EMULATOR_UNARY(cbrt)
EMULATOR_UNARY(sin)
EMULATOR_UNARY(cos)
EMULATOR_UNARY(tan)
EMULATOR_UNARY(tanh)
EMULATOR_UNARY(erf)
EMULATOR_UNARY(erfc)
EMULATOR_UNARY(floor)
EMULATOR_UNARY(ceil)
EMULATOR_UNARY(trunc)
EMULATOR_UNARY(round)
EMULATOR_UNARY(rint)
EMULATOR_UNARY(nearbyint)
EMULATOR_UNARY(fabs)
#undef EMULATOR_UNARY
extern "C" {
double pow(double, double);
float powf(float, float);
float fmodf(float, float);
float copysignf(float, float);
float ldexpf(float, int);
float hypotf(float, float);
double fma(double, double, double);
float fmaf(float, float, float);
float fminf(float, float);
float fmaxf(float, float);
double fmin(double, double);
double fmax(double, double);
int abs(int);
long long llabs(long long);
int printf(const char*, ...);
}
inline float pow(float x, float y) { return powf(x, y); }
inline float fma(float a, float b, float c) { return fmaf(a, b, c); }
inline float fmin(float a, float b) { return fminf(a, b); }
inline float fmax(float a, float b) { return fmaxf(a, b); }
inline float abs(float x) { return fabsf(x); }
inline double abs(double x) { return fabs(x); }
inline long long abs(long long x) { return x < 0 ? -x : x; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float exp10f(float x) { return powf(10.0f, x); }
inline float sinpif(float x) {
  const double turns = x - 2.0 * floor(x * 0.5);
  return static_cast<float>(sin(turns * 3.14159265358979323846));
}
inline float cospif(float x) {
  const double turns = x - 2.0 * floor(x * 0.5);
  return static_cast<float>(cos(turns * 3.14159265358979323846));
}
inline void sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
inline bool isnan(float x) { return __builtin_isnan(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }

#define EMULATOR_MIN_MAX(type)                                    \
  inline type min(type a, type b) { return b < a ? b : a; }       \
  inline type max(type a, type b) { return a < b ? b : a; }
EMULATOR_MIN_MAX(int)
EMULATOR_MIN_MAX(unsigned)
EMULATOR_MIN_MAX(long)
EMULATOR_MIN_MAX(unsigned long)
EMULATOR_MIN_MAX(long long)
EMULATOR_MIN_MAX(unsigned long long)
#undef EMULATOR_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// Bits and conversions.
inline unsigned __float_as_uint(float x) { return __builtin_bit_cast(unsigned, x); }
inline int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
inline float __uint_as_float(unsigned x) { return __builtin_bit_cast(float, x); }
inline float __int_as_float(int x) { return __builtin_bit_cast(float, x); }
inline long long __double_as_longlong(double x) { return __builtin_bit_cast(long long, x); }
inline double __longlong_as_double(long long x) { return __builtin_bit_cast(double, x); }
inline int __float2int_rn(float x) { return static_cast<int>(rintf(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline int __float2int_rd(float x) { return static_cast<int>(floorf(x)); }
inline int __float2int_ru(float x) { return static_cast<int>(ceilf(x)); }
inline unsigned __float2uint_rn(float x) { return static_cast<unsigned>(rintf(x)); }
inline unsigned __float2uint_rz(float x) { return static_cast<unsigned>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline float __ll2float_rn(long long x) { return static_cast<float>(x); }
inline float __double2float_rn(double x) { return static_cast<float>(x); }

// Arithmetic that says how it rounds, and the fast kinds, which are exact here.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline void __sincosf(float x, float* s, float* c) { sincosf(x, s, c); }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }

inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline int __mulhi(int a, int b) { return static_cast<int>(static_cast<long long>(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __brev(unsigned x) {
  unsigned reversed = 0;
  for (int i = 0; i < 32; ++i) reversed |= (x >> i & 1u) << (31 - i);
  return reversed;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const unsigned long long bytes = static_cast<unsigned long long>(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<unsigned>(bytes >> 8 * (selector >> 4 * i & 7u) & 0xffu) << 8 * i;
  return result;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>(((static_cast<unsigned long long>(high) << 32 | low) << (shift & 31u)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31u));
}

// Memory.
inline size_t __cvta_generic_to_shared(const void* pointer) { return emulator::machine->shared_address(pointer); }
#define EMULATOR_LOAD(name)     \
  template <class T>            \
  inline T name(const T* from) { \
    return *from;               \
  }
#define EMULATOR_STORE(name)            \
  template <class T>                    \
  inline void name(T* to, T value) {    \
    *to = value;                        \
  }
EMULATOR_LOAD(__ldg)
EMULATOR_LOAD(__ldcg)
EMULATOR_LOAD(__ldca)
EMULATOR_LOAD(__ldcs)
EMULATOR_LOAD(__ldlu)
EMULATOR_LOAD(__ldcv)
EMULATOR_STORE(__stcg)
EMULATOR_STORE(__stcs)
EMULATOR_STORE(__stwb)
EMULATOR_STORE(__stwt)
#undef EMULATOR_LOAD
#undef EMULATOR_STORE
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __nanosleep(unsigned) {}
[[noreturn]] inline void __trap() { emulator::machine->fail("__trap", nullptr, 0); }

// Collectives.
namespace emulator {

inline unsigned long long meet(Collective collective, unsigned mask, unsigned long long value, unsigned source = 0) {
  Part part;
  part.value = value;
  part.source = source;
  machine->meet(collective, mask, part);
  return part.result;
}

template <class T>
inline T shuffle(Collective collective, unsigned mask, T value, unsigned source) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
  if constexpr (sizeof(T) == 4) {
    return __builtin_bit_cast(
        T, static_cast<unsigned>(meet(collective, mask, __builtin_bit_cast(unsigned, value), source)));
  } else {
    return __builtin_bit_cast(T, meet(collective, mask, __builtin_bit_cast(unsigned long long, value), source));
  }
}

/// The wanted lane of this lane's segment of `width` lanes, or this lane itself where that is outside.
inline unsigned lane_in_segment(long long wanted, int width) {
  const unsigned lane = machine->lane, first = lane / static_cast<unsigned>(width) * static_cast<unsigned>(width);
  return wanted >= first && wanted < static_cast<long long>(first) + width ? static_cast<unsigned>(wanted) : lane;
}

}  // namespace emulator

inline void __syncthreads() { emulator::meet(emulator::Collective::sync_threads, ~0u, 0); }
inline int __syncthreads_count(int x) {
  return static_cast<int>(emulator::meet(emulator::Collective::sync_threads_count, ~0u, x != 0));
}
inline int __syncthreads_and(int x) {
  return static_cast<int>(emulator::meet(emulator::Collective::sync_threads_and, ~0u, x != 0));
}
inline int __syncthreads_or(int x) {
  return static_cast<int>(emulator::meet(emulator::Collective::sync_threads_or, ~0u, x != 0));
}
inline void __syncwarp(unsigned mask = ~0u) { emulator::meet(emulator::Collective::sync_warp, mask, 0); }
template <class T>
inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const unsigned lane = emulator::machine->lane, segment = static_cast<unsigned>(width);
  return emulator::shuffle(emulator::Collective::shuffle, mask, value,
                           lane / segment * segment + static_cast<unsigned>(source) % segment);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  // Unlike the others it may read from a segment before its own.
  const unsigned lane = emulator::machine->lane, source = lane ^ static_cast<unsigned>(lanes);
  const unsigned segment = static_cast<unsigned>(width);
  return emulator::shuffle(emulator::Collective::shuffle_xor, mask, value,
                           source < (lane / segment + 1) * segment ? source : lane);
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned lanes, int width = 32) {
  const long long wanted = static_cast<long long>(emulator::machine->lane) - lanes;
  return emulator::shuffle(emulator::Collective::shuffle_up, mask, value, emulator::lane_in_segment(wanted, width));
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned lanes, int width = 32) {
  const long long wanted = static_cast<long long>(emulator::machine->lane) + lanes;
  return emulator::shuffle(emulator::Collective::shuffle_down, mask, value, emulator::lane_in_segment(wanted, width));
}
inline int __any_sync(unsigned mask, int x) {
  return static_cast<int>(emulator::meet(emulator::Collective::any, mask, x != 0));
}
inline int __all_sync(unsigned mask, int x) {
  return static_cast<int>(emulator::meet(emulator::Collective::all, mask, x != 0));
}
inline unsigned __ballot_sync(unsigned mask, int x) {
  return static_cast<unsigned>(emulator::meet(emulator::Collective::ballot, mask, x != 0));
}

// -fsanitize=alignment,bounds calls these: a misaligned access, an index outside an array of known length.
namespace emulator {
struct SourcePlace {
  const char* file;
  unsigned line, column;
};
}  // namespace emulator
extern "C" [[noreturn]] __attribute__((visibility("hidden"))) void __ubsan_handle_type_mismatch_v1_abort(
    const emulator::SourcePlace* place, const void* pointer) {
  emulator::machine->fail(pointer == nullptr ? "an access through a null pointer" : "a misaligned access", place->file,
                          place->line);
}
extern "C" [[noreturn]] __attribute__((visibility("hidden"))) void __ubsan_handle_out_of_bounds_abort(
    const emulator::SourcePlace* place, const void*) {
  emulator::machine->fail("an index outside its array", place->file, place->line);
}

// -fsanitize=thread calls these before every access.
#ifdef EMULATOR_FIND_RACES
#define EMULATOR_HOOK __attribute__((visibility("hidden"), no_sanitize("thread"))) void
namespace emulator {
inline EMULATOR_HOOK access(const void* pointer, unsigned long bytes, bool is_write) {
  const auto* at = static_cast<const unsigned char*>(pointer);
  if (at >= machine->stacks && at < machine->stacks_end) return;
  machine->access(pointer, static_cast<unsigned>(bytes), is_write);
}
}  // namespace emulator
#define EMULATOR_ACCESS(bytes)                                                                              \
  EMULATOR_HOOK __tsan_read##bytes(void* p) { emulator::access(p, bytes, false); }                          \
  EMULATOR_HOOK __tsan_write##bytes(void* p) { emulator::access(p, bytes, true); }                          \
  EMULATOR_HOOK __tsan_unaligned_read##bytes(void* p) { emulator::access(p, bytes, false); }                \
  EMULATOR_HOOK __tsan_unaligned_write##bytes(void* p) { emulator::access(p, bytes, true); }
extern "C" {
EMULATOR_ACCESS(1)
EMULATOR_ACCESS(2)
EMULATOR_ACCESS(4)
EMULATOR_ACCESS(8)
EMULATOR_ACCESS(16)
EMULATOR_HOOK __tsan_read_range(void* p, unsigned long bytes) { emulator::access(p, bytes, false); }
EMULATOR_HOOK __tsan_write_range(void* p, unsigned long bytes) { emulator::access(p, bytes, true); }
EMULATOR_HOOK __tsan_vptr_read(void*) {}
EMULATOR_HOOK __tsan_init() {}
}
#undef EMULATOR_ACCESS
#undef EMULATOR_HOOK
#endif
