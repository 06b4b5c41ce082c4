#include "codegen/jit/sha256.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace difuse::codegen {
namespace {

constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

}  // namespace

void Sha256::add_block(const std::byte* block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i) {
    w[i] = 0;
    for (size_t b = 0; b < 4; ++b) w[i] = w[i] << 8 | std::to_integer<uint32_t>(block[4 * i + b]);
  }
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t choice = (e & f) ^ (~e & g);
    const uint32_t first = h + s1 + choice + kRound[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + s0 + majority;
  }
  const std::array<uint32_t, 8> change = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += change[i];
}

Sha256& Sha256::add(std::span<const std::byte> bytes) {
  size_t filled = bytes_ % 64;
  bytes_ += bytes.size();
  while (!bytes.empty()) {
    if (filled == 0 && bytes.size() >= 64) {
      add_block(bytes.data());
      bytes = bytes.subspan(64);
      continue;
    }
    const size_t count = std::min(bytes.size(), 64 - filled);
    std::memcpy(pending_.data() + filled, bytes.data(), count);
    bytes = bytes.subspan(count);
    filled += count;
    if (filled == 64) {
      add_block(pending_.data());
      filled = 0;
    }
  }
  return *this;
}

Sha256& Sha256::add_field(std::string_view field) { return add(fmt::format("{}:", field.size())).add(field); }

std::string Sha256::hex() {
  const uint64_t bits = bytes_ * 8;
  // A one bit, zeros, and the length in bits fill the last block.
  const size_t zeros = (119 - bytes_ % 64) % 64;
  std::array<std::byte, 72> tail{};
  tail[0] = std::byte{0x80};
  for (size_t i = 0; i < 8; ++i) tail[1 + zeros + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
  add(std::span(tail).first(1 + zeros + 8));
  std::string text;
  for (const uint32_t word : state_) text += fmt::format("{:08x}", word);
  return text;
}

}  // namespace difuse::codegen
