// Philox4x32-10, the counter-based generator behind every random draw (Salmon, Moraes, Dror and Shaw, "Parallel Random
// Numbers: As Easy as 1, 2, 3", SC 2011). A draw is keyed by (seed, stream, image index, step), so it depends on
// neither the batch size nor the thread, rank or device that makes it.
#pragma once

#include <array>
#include <cstdint>

namespace difuse::ir {

using Philox4 = std::array<uint32_t, 4>;

inline Philox4 philox(Philox4 counter, std::array<uint32_t, 2> key) {
  constexpr uint32_t kMultiply0 = 0xD2511F53u, kMultiply1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(kMultiply0) * counter[0];
    const uint64_t p1 = static_cast<uint64_t>(kMultiply1) * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(p0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

/// The four words for elements [4 * block, 4 * block + 4) of one sample.
struct DrawKey {
  std::array<uint32_t, 2> seed;
  uint32_t stream, index, step;

  Philox4 block(int64_t at) const { return philox({static_cast<uint32_t>(at), index, step, stream}, seed); }
};

/// Uniform in (0, 1): 23 bits and a half, exact in f32, never 0 and never 1.
inline float uniform_of(uint32_t word) { return (static_cast<float>(word >> 9) + 0.5f) * 0x1p-23f; }

/// Uniform in [0, bound), bound <= 2^31.
inline int32_t uniform_int_of(uint32_t word, uint32_t bound) {
  return static_cast<int32_t>((static_cast<uint64_t>(word) * bound) >> 32);
}

}  // namespace difuse::ir
