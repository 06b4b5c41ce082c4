#include "codegen/cpu/thread_team.h"

#include <fmt/format.h>

#include <chrono>
#include <system_error>

#include "ir/error.h"

namespace difuse::codegen {
namespace {

constexpr std::chrono::microseconds kSpin{50};  // about the length of a short kernel

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Returns once `value` is no longer `old`.
void wait_while(const std::atomic<uint32_t>& value, uint32_t old) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (value.load(std::memory_order_acquire) != old) return;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadTeam::ThreadTeam(int threads) {
  try {
    for (int thread = 1; thread < threads; ++thread) workers_.emplace_back([this, thread] { work(thread); });
  } catch (const std::system_error& e) {
    const size_t started = workers_.size() + 1;
    stop();
    throw Error(fmt::format("cannot start {} threads: {} after {}", threads, e.what(), started), "use fewer --threads",
                ExitCode::wrong_usage);
  }
}

ThreadTeam::~ThreadTeam() { stop(); }

void ThreadTeam::stop() {
  body_ = nullptr;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void ThreadTeam::run(const std::function<void(int)>& body) {
  body_ = &body;
  working_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  body(0);
  for (uint32_t left; (left = working_.load(std::memory_order_acquire)) != 0;) wait_while(working_, left);
}

void ThreadTeam::work(int thread) {
  for (uint32_t seen = 0;; ++seen) {
    wait_while(round_, seen);
    if (body_ == nullptr) return;
    (*body_)(thread);
    if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) working_.notify_one();
  }
}

}  // namespace difuse::codegen
