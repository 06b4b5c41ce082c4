// The order in which training sees its images, and the coin that flips them, as pure functions of the seed.
#pragma once

#include <cstdint>
#include <span>

namespace difuse::runtime {

/// Fills `order` with a permutation of 0 .. size-1 that depends on (seed, epoch, size) alone: Fisher-Yates from the
/// last element down, element i swapped with floor(r * (i + 1) / 2^64), r the first two words (low, high) of
/// ir::philox(counter = {i low, i high, epoch, 2^31 + 1}, key = seed).
void shuffle_epoch(std::span<std::int64_t> order, std::uint64_t seed, std::uint32_t epoch);

/// A fair coin for the sample at `position` of the endless sequence: the lowest bit of
/// ir::philox(counter = {position low, position high, 0, 2^31 + 2}, key = seed).
bool flip_sample(std::uint64_t seed, std::uint64_t position);

}  // namespace difuse::runtime
