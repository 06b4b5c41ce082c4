#include "runtime/data/shuffle.h"

#include <numeric>
#include <utility>

#include "ir/philox.h"

namespace difuse::runtime {

namespace {

__extension__ using Uint128 = unsigned __int128;

// One stream per use, so that no two draws share a counter. A graph counts its streams from 0.
constexpr std::uint32_t kShuffleStream = 0x80000001;
constexpr std::uint32_t kFlipStream = 0x80000002;

constexpr std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
constexpr std::uint32_t high(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

}  // namespace

void shuffle_epoch(std::span<std::int64_t> order, std::uint64_t seed, std::uint32_t epoch) {
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::uint64_t i = order.size(); i-- > 1;) {
    const ir::Philox4 words = ir::philox({low(i), high(i), epoch, kShuffleStream}, {low(seed), high(seed)});
    const std::uint64_t random = std::uint64_t{words[1]} << 32 | words[0];
    const auto j = static_cast<std::uint64_t>((Uint128{random} * (i + 1)) >> 64);
    std::swap(order[i], order[j]);
  }
}

bool flip_sample(std::uint64_t seed, std::uint64_t position) {
  return ir::philox({low(position), high(position), 0, kFlipStream}, {low(seed), high(seed)})[0] & 1;
}

}  // namespace difuse::runtime
