// Storage types, and runs of `lanes` consecutive elements between memory and registers.
#pragma once
#include "codegen/cuda/device/ptx.cuh"

/// Storage only; arithmetic is float.
struct alignas(2) bf16 {
  unsigned short bits;
};
struct alignas(2) f16 {
  unsigned short bits;
};
using u8 = unsigned char;
using u32 = unsigned;
using i32 = int;
using f32 = float;

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float(static_cast<unsigned>(x.bits) << 16); }
__device__ __forceinline__ float widen(f16 x) { return unpack_f16(x.bits); }
__device__ __forceinline__ int widen(int x) { return x; }
__device__ __forceinline__ unsigned widen(unsigned x) { return x; }
__device__ __forceinline__ unsigned widen(unsigned char x) { return x; }

template <class T>
struct Narrow {
  template <class R>
  __device__ __forceinline__ static T from(R x) {
    return static_cast<T>(x);
  }
};
template <>
struct Narrow<bf16> {
  __device__ __forceinline__ static bf16 from(float x) { return {static_cast<unsigned short>(pack_bf16(x, 0.0f))}; }
  __device__ __forceinline__ static unsigned pair(float low, float high) { return pack_bf16(low, high); }
};
template <>
struct Narrow<f16> {
  __device__ __forceinline__ static f16 from(float x) { return {static_cast<unsigned short>(pack_f16(x, 0.0f))}; }
  __device__ __forceinline__ static unsigned pair(float low, float high) { return pack_f16(low, high); }
};
/// A register value as it is stored: to nearest, ties to even.
template <class T, class R>
__device__ __forceinline__ T narrow(R x) {
  return Narrow<T>::from(x);
}

// Coordinates are never negative where they are divided, and unsigned division by a literal is the shorter one.
template <int divisor>
__device__ __forceinline__ int quotient(int x) {
  return static_cast<int>(static_cast<unsigned>(x) / static_cast<unsigned>(divisor));
}
template <int divisor>
__device__ __forceinline__ long long quotient(long long x) {
  return static_cast<long long>(static_cast<unsigned long long>(x) / static_cast<unsigned long long>(divisor));
}
template <int divisor>
__device__ __forceinline__ int remainder_of(int x) {
  return static_cast<int>(static_cast<unsigned>(x) % static_cast<unsigned>(divisor));
}
template <int divisor>
__device__ __forceinline__ long long remainder_of(long long x) {
  return static_cast<long long>(static_cast<unsigned long long>(x) % static_cast<unsigned long long>(divisor));
}

/// A run of elements, aligned so that it moves in accesses of up to 16 bytes.
template <class T, int lanes>
struct alignas(sizeof(T) * lanes < 16 ? sizeof(T) * lanes : 16) Run {
  T element[lanes];
  __device__ __forceinline__ T& operator[](int l) { return element[l]; }
  __device__ __forceinline__ const T& operator[](int l) const { return element[l]; }
};

/// `lanes` elements from an address that is a multiple of the run's alignment; where fewer than `lanes` are available,
/// only those are read and the others are zero.
template <int lanes, class T>
__device__ __forceinline__ Run<T, lanes> load_run(const T* from, long long available = lanes) {
  if (available >= lanes) return *reinterpret_cast<const Run<T, lanes>*>(from);
  Run<T, lanes> run = {};
#pragma unroll
  for (int l = 0; l < lanes; ++l) {
    if (l < available) run[l] = from[l];
  }
  return run;
}

/// A run that was loaded and waits for its use. Elements of less than 32 bits stay in the words in which they came:
/// where a loop carries them from one round to the next, a compiler takes elements apart as soon as they are loaded,
/// and so would wait for them.
template <class T, int lanes, bool in_words = sizeof(T) < 4 && sizeof(T) * lanes % 4 == 0>
struct Held {
  Run<T, lanes> run;
  __device__ __forceinline__ T operator[](int l) const { return run[l]; }
};
template <class T, int lanes>
struct Held<T, lanes, true> {
  static constexpr int kBits = 8 * sizeof(T), kPerWord = 32 / kBits;
  Run<unsigned, lanes / kPerWord> words;
  __device__ __forceinline__ T operator[](int l) const {
    const unsigned bits = words[l / kPerWord] >> (l % kPerWord * kBits);
    if constexpr (sizeof(T) == 2) {
      return {static_cast<unsigned short>(bits)};
    } else {
      return static_cast<T>(bits);
    }
  }
};
template <int lanes, class T>
__device__ __forceinline__ Held<T, lanes> load_held(const T* from) {
  return *reinterpret_cast<const Held<T, lanes>*>(from);
}
/// Register values as they are stored. Neighbours of 16 bits are rounded by one instruction.
template <class T, int lanes, class R>
__device__ __forceinline__ void store_whole_run(T* to, const Run<R, lanes>& run) {
  if constexpr (sizeof(T) == 2 && lanes % 2 == 0) {
    Run<unsigned, lanes / 2> pairs;
#pragma unroll
    for (int i = 0; i < lanes / 2; ++i) pairs[i] = Narrow<T>::pair(run[2 * i], run[2 * i + 1]);
    *reinterpret_cast<Run<unsigned, lanes / 2>*>(to) = pairs;
  } else {
    Run<T, lanes> stored;
#pragma unroll
    for (int l = 0; l < lanes; ++l) stored[l] = narrow<T>(run[l]);
    *reinterpret_cast<Run<T, lanes>*>(to) = stored;
  }
}
template <int lanes, class T, class R>
__device__ __forceinline__ void store_run(T* to, const Run<R, lanes>& run, long long available = lanes) {
  if (available >= lanes) {
    store_whole_run(to, run);
    return;
  }
#pragma unroll
  for (int l = 0; l < lanes; ++l) {
    if (l < available) to[l] = narrow<T>(run[l]);
  }
}
