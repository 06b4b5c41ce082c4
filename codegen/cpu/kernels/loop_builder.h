// Makes a BlockLoop of one group of items.
#pragma once

#include <memory>

#include "codegen/cpu/kernels/block_loop.h"
#include "codegen/cpu/kernels/schedule.h"

namespace difuse::codegen::cpu {

/// Hands out scratch: a thread's, for one phase.
class ScratchCounter {
 public:
  /// 64-byte aligned.
  int64_t take(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += aligned_bytes(bytes);
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

struct BuiltLoop {
  std::unique_ptr<BlockLoop> loop;
  std::vector<int> reduced;  ///< The value that each of the loop's reductions makes.
};

/// `images` is the count of images where the group runs by image, else 0; `unit_images` those of one unit. Values that
/// the group reads or writes have their `memory` set. The places of the loop's reductions are left to the caller.
BuiltLoop build_loop(const Body& body, const Group& group, int64_t images, int64_t unit_images,
                     ScratchCounter& scratch);

/// Whether two places in the arena share bytes.
bool overlap(const Place& a, int64_t a_bytes, const Place& b, int64_t b_bytes);

}  // namespace difuse::codegen::cpu
