// Counter-based draws: the same words as ir/philox.h gives, keyed by (seed, stream, image index, step).
#pragma once

struct Words {
  unsigned word[4];
};

__device__ __forceinline__ Words philox(unsigned c0, unsigned c1, unsigned c2, unsigned c3, unsigned k0, unsigned k1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
    const unsigned high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
    c0 = high1 ^ c1 ^ k0;
    c1 = low1;
    c2 = high0 ^ c3 ^ k1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// The words of element `at` of a sample and of its three neighbours.
__device__ __forceinline__ Words block_of(unsigned seed0, unsigned seed1, unsigned stream, int index, int step,
                                          long long at) {
  return philox(static_cast<unsigned>(at / 4), static_cast<unsigned>(index), static_cast<unsigned>(step), stream, seed0,
                seed1);
}
/// Without an array index that is not a literal, which would put the words into local memory.
__device__ __forceinline__ unsigned word_of(const Words& words, unsigned i) {
  const unsigned low = i == 0 ? words.word[0] : words.word[1];
  const unsigned high = i == 2 ? words.word[2] : words.word[3];
  return i < 2 ? low : high;
}
__device__ __forceinline__ float uniform_of(unsigned word) {
  return (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f;
}

// Of the element that has word `i`.
__device__ __forceinline__ float random_uniform(const Words& words, unsigned i) {
  return uniform_of(word_of(words, i));
}
/// Uniform in [0, bound).
__device__ __forceinline__ int random_int(const Words& words, unsigned i, unsigned bound) {
  return static_cast<int>(__umulhi(word_of(words, i), bound));
}
/// Box and Muller: words (0, 1) and (2, 3) give two normals each.
__device__ __forceinline__ float random_normal(const Words& words, unsigned i) {
  const unsigned pair = i / 2 * 2;
  const float radius = sqrtf(-2.0f * logf(uniform_of(word_of(words, pair))));
  const float turns = 2.0f * uniform_of(word_of(words, pair + 1));
  return radius * (i % 2 == 0 ? cospif(turns) : sinpif(turns));
}
