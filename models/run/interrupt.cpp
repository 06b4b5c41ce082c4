#include "models/run/interrupt.h"

#include <atomic>

namespace difuse::models {
namespace {

// A signal handler reaches nothing but static storage.
std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free);

void remember(int number) {
  received = number;
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  ::sigaction(SIGINT, &standard, nullptr);
  ::sigaction(SIGTERM, &standard, nullptr);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  received = 0;
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGINT, &action, &old_interrupt_);
  ::sigaction(SIGTERM, &action, &old_terminate_);
}

InterruptGuard::~InterruptGuard() {
  ::sigaction(SIGINT, &old_interrupt_, nullptr);
  ::sigaction(SIGTERM, &old_terminate_, nullptr);
}

int InterruptGuard::signal() const { return received; }

}  // namespace difuse::models
