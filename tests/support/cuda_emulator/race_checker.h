// Finds accesses of the threads of a launch that nothing orders, of which one writes.
//
// Two threads of a block are ordered by a __syncthreads between their accesses, two of a warp also by a __syncwarp that
// both take part in, two of a warpgroup by a named barrier that all of it and nobody else waits at; threads of
// different blocks by nothing. Shuffles, votes and products order no memory.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace difuse::testing {

/// Who touches a byte, and after how many of its barriers.
struct Accessor {
  int block = -1;   ///< Nobody.
  int thread = -1;  ///< Of the block.
  int block_barriers = 0, group_barriers = 0, warp_barriers = 0;

  int warp() const { return thread / 32; }
  int group() const { return thread / 128; }
};

class RaceChecker {
 public:
  /// `shared`: memory of a block, which the next block does not see.
  explicit RaceChecker(std::array<std::pair<const unsigned char*, const unsigned char*>, 2> shared);

  void start_block();
  /// What is wrong with this access, or nothing.
  std::string access(const void* pointer, unsigned bytes, bool is_write, const Accessor& accessor);

 private:
  struct Readers {
    Accessor last;
    bool several_blocks = false, several_groups = false, several_warps = false, several_threads = false;
  };
  struct Byte {
    Accessor writer;
    Readers readers;
  };
  static constexpr uintptr_t kPage = 1024;
  using Page = std::array<Byte, kPage>;

  Byte& byte(uintptr_t address);
  static void note_read(Readers& readers, const Accessor& accessor);

  std::array<std::pair<uintptr_t, uintptr_t>, 2> shared_;
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  uintptr_t last_page_ = 0;
  Page* last_ = nullptr;
};

}  // namespace difuse::testing
