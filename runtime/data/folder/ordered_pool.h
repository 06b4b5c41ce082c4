// Work on many threads whose results are taken in order.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

namespace difuse::runtime {

/// Calls `work(i)` for i = 0 .. count - 1 on `threads` threads and hands each result to `take(i, result)` in the order
/// of i, on the calling thread. At most `ahead` results wait, so memory stays bounded. The first exception, of either,
/// ends everything and is thrown here.
template <typename Result, typename Work, typename Take>
void run_in_order(std::int64_t count, int threads, std::int64_t ahead, Work&& work, Take&& take) {
  struct Slot {
    std::optional<Result> result;
    std::exception_ptr failure;
  };
  ahead = std::max<std::int64_t>(ahead, threads);
  std::vector<Slot> slots(static_cast<std::size_t>(std::min(ahead, std::max<std::int64_t>(count, 1))));
  std::mutex mutex;
  std::condition_variable_any changed;
  std::int64_t next = 0, taken = 0;  // Guarded by the mutex, as are the slots' flags.

  const auto slot_of = [&](std::int64_t i) -> Slot& { return slots[static_cast<std::size_t>(i) % slots.size()]; };
  const auto run = [&](const std::stop_token& stop) {
    for (;;) {
      std::int64_t i = 0;
      {
        std::unique_lock lock(mutex);
        const auto free = [&] { return next >= count || next < taken + static_cast<std::int64_t>(slots.size()); };
        if (!changed.wait(lock, stop, free) || stop.stop_requested() || next >= count) return;
        i = next++;
      }
      Slot done;
      try {
        done.result.emplace(work(i));
      } catch (...) {
        done.failure = std::current_exception();
      }
      {
        const std::scoped_lock lock(mutex);
        slot_of(i) = std::move(done);
      }
      changed.notify_all();
    }
  };

  std::vector<std::jthread> pool;  // Joins before what its threads use goes away, also when take() throws.
  for (int t = 0; t < threads; ++t) pool.emplace_back(run);
  for (std::int64_t i = 0; i < count; ++i) {
    Slot done;
    {
      std::unique_lock lock(mutex);
      Slot& slot = slot_of(i);
      changed.wait(lock, [&] { return slot.result.has_value() || slot.failure; });
      done = std::exchange(slot, {});
      taken = i + 1;
    }
    changed.notify_all();
    if (done.failure) {
      for (std::jthread& thread : pool) thread.request_stop();
      std::rethrow_exception(done.failure);
    }
    try {
      take(i, std::move(*done.result));
    } catch (...) {
      for (std::jthread& thread : pool) thread.request_stop();
      throw;
    }
  }
}

}  // namespace difuse::runtime
