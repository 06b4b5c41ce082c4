#include "models/run/count_progress.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "models/run/console.h"
#include "models/run/units.h"

namespace difuse::models {

CountProgress::CountProgress(std::string doing, std::string things)
    : doing_(std::move(doing)), things_(std::move(things)), terminal_(::isatty(STDOUT_FILENO) == 1) {}

CountProgress::~CountProgress() {
  if (shown_ && terminal_) say("\n");
}

void CountProgress::show(int64_t done, int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  const bool last = shown_ && terminal_ && done == total;
  if (!last && now - last_ < (terminal_ ? std::chrono::milliseconds(250) : std::chrono::seconds(10))) return;
  last_ = now;
  shown_ = true;
  say("{}{}: {} of {} {}{}", terminal_ ? "\r" : "", doing_, format_count(done), format_count(total), things_,
      terminal_ ? "" : "\n");
  std::fflush(stdout);
}

}  // namespace difuse::models
