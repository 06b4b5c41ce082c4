#include "tests/support/cuda_emulator/race_checker.h"

#include <fmt/format.h>

namespace difuse::testing {
namespace {

/// Whether something orders `before`, of the same block, and the access that comes after.
bool is_ordered(const Accessor& before, const Accessor& now) {
  if (before.block != now.block) return false;
  if (before.thread == now.thread || before.block_barriers != now.block_barriers) return true;
  if (before.group() == now.group() && before.group_barriers != now.group_barriers) return true;
  return before.warp() == now.warp() && before.warp_barriers != now.warp_barriers;
}

std::string text(const Accessor& accessor) {
  return fmt::format("thread {} of block {}", accessor.thread, accessor.block);
}

}  // namespace

RaceChecker::RaceChecker(std::array<std::pair<const unsigned char*, const unsigned char*>, 2> shared) {
  for (size_t i = 0; i < shared.size(); ++i) {
    shared_[i] = {reinterpret_cast<uintptr_t>(shared[i].first), reinterpret_cast<uintptr_t>(shared[i].second)};
  }
}

void RaceChecker::start_block() {
  for (const auto& [begin, end] : shared_) {
    for (uintptr_t page = begin / kPage; page * kPage < end; ++page) {
      const auto found = pages_.find(page);
      if (found == pages_.end()) continue;
      for (uintptr_t i = 0; i < kPage; ++i) {
        if (page * kPage + i >= begin && page * kPage + i < end) (*found->second)[i] = {};
      }
    }
  }
}

RaceChecker::Byte& RaceChecker::byte(uintptr_t address) {
  if (last_ == nullptr || address / kPage != last_page_) {
    auto& page = pages_[address / kPage];
    if (!page) page = std::make_unique<Page>();
    last_ = page.get();
    last_page_ = address / kPage;
  }
  return (*last_)[address % kPage];
}

void RaceChecker::note_read(Readers& readers, const Accessor& accessor) {
  Accessor& last = readers.last;
  if (last.block != accessor.block) {
    readers.several_blocks |= last.block >= 0;
    readers.several_groups = readers.several_warps = readers.several_threads = false;
  } else if (last.block_barriers != accessor.block_barriers) {
    readers.several_groups = readers.several_warps = readers.several_threads = false;
  } else if (last.group() != accessor.group()) {
    readers.several_groups = true;
  } else if (last.group_barriers != accessor.group_barriers) {
    readers.several_warps = readers.several_threads = false;
  } else if (last.warp() != accessor.warp()) {
    readers.several_warps = true;
  } else if (last.warp_barriers != accessor.warp_barriers) {
    readers.several_threads = false;
  } else {
    readers.several_threads |= last.thread != accessor.thread;
  }
  last = accessor;
}

std::string RaceChecker::access(const void* pointer, unsigned bytes, bool is_write, const Accessor& accessor) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  for (unsigned i = 0; i < bytes; ++i) {
    Byte& at = byte(address + i);
    if (at.writer.block >= 0 && !is_ordered(at.writer, accessor)) {
      return fmt::format("a race: {} what {} wrote, and nothing orders them", is_write ? "writes" : "reads",
                         text(at.writer));
    }
    if (!is_write) {
      note_read(at.readers, accessor);
      continue;
    }
    const Readers& readers = at.readers;
    const Accessor& last = readers.last;
    bool ordered = last.block < 0 || (is_ordered(last, accessor) && !readers.several_blocks);
    if (ordered && last.block_barriers == accessor.block_barriers && last.block >= 0) {
      const bool same_group = last.group_barriers == accessor.group_barriers;
      if (readers.several_groups || (readers.several_warps && same_group)) ordered = false;
      if (readers.several_threads && same_group && last.warp_barriers == accessor.warp_barriers) ordered = false;
    }
    if (!ordered) {
      return fmt::format(
          "a race: writes what {}{} read, and nothing orders them", text(last),
          readers.several_blocks || readers.several_groups || readers.several_warps || readers.several_threads
              ? " or another"
              : "");
    }
    at.writer = accessor;
    at.readers = {};
  }
  return {};
}

}  // namespace difuse::testing
