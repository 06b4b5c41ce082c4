// SIGINT, SIGTERM and SIGHUP as a request: the step in progress is finished and saved. What the training loop needs
// around itself lives in this folder: signals, the output folder, the progress line. What must not live here: graphs,
// data.
#pragma once

#include <signal.h>

namespace difuse::models {

/// Thrown where a signal ends work that has nothing to save.
struct Interrupted {
  int signal;
};

/// While it lives, the first SIGINT, SIGTERM or SIGHUP is only remembered; a second one kills the process at once. A
/// SIGHUP that was ignored before (nohup) stays ignored. One at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  /// The signal that came, or 0.
  int signal() const;
  /// Throws Interrupted when one came.
  void check() const {
    if (signal() != 0) throw Interrupted{signal()};
  }

 private:
  struct sigaction old_interrupt_ {};
  struct sigaction old_terminate_ {};
  struct sigaction old_hang_up_ {};
};

}  // namespace difuse::models
