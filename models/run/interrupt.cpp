#include "models/run/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string_view>

namespace difuse::models {
namespace {

// A signal handler reaches nothing but static storage.
std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free);

void remember(int number) {
  const int old_errno = errno;
  received = number;
  constexpr std::string_view kMessage =
      "\nstopping in good order, what is done so far is kept; the same signal again stops at once\n";
  static_cast<void>(!::write(STDERR_FILENO, kMessage.data(), kMessage.size()));
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(SIGINT, &standard, nullptr);
  ::sigaction(SIGTERM, &standard, nullptr);
  struct sigaction hang_up {};
  ::sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &standard, nullptr);
  errno = old_errno;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  received = 0;
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, &old_interrupt_);
  ::sigaction(SIGTERM, &action, &old_terminate_);
  ::sigaction(SIGHUP, nullptr, &old_hang_up_);
  if (old_hang_up_.sa_handler != SIG_IGN) ::sigaction(SIGHUP, &action, nullptr);
}

InterruptGuard::~InterruptGuard() {
  ::sigaction(SIGINT, &old_interrupt_, nullptr);
  ::sigaction(SIGTERM, &old_terminate_, nullptr);
  ::sigaction(SIGHUP, &old_hang_up_, nullptr);
}

int InterruptGuard::signal() const { return received; }

}  // namespace difuse::models
