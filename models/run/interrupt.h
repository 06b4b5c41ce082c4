// SIGINT and SIGTERM as a request: the step in progress is finished and saved. What the training loop needs around
// itself lives in this folder: signals, the output folder, the progress line. What must not live here: graphs, data.
#pragma once

#include <signal.h>

namespace difuse::models {

/// While it lives, the first SIGINT or SIGTERM is only remembered; a second one kills the process at once. One at a
/// time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// The signal that came, or 0.
  int signal() const;

 private:
  struct sigaction old_interrupt_ {};
  struct sigaction old_terminate_ {};
};

}  // namespace difuse::models
