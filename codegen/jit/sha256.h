// SHA-256 (FIPS 180-4), for names by content: a kernel's cache key and the check of what was read back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace difuse::codegen {

class Sha256 {
 public:
  Sha256& add(std::span<const std::byte> bytes);
  Sha256& add(std::string_view text) { return add(std::as_bytes(std::span(text))); }

  /// Adds the length first, so that two lists of fields never read as the same bytes.
  Sha256& add_field(std::string_view field);

  /// The digest of all that was added, as 64 hexadecimal digits. The object is spent afterwards.
  std::string hex();

 private:
  void add_block(const std::byte* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> pending_{};
  uint64_t bytes_ = 0;
};

}  // namespace difuse::codegen
