// Turns a crash inside a kernel into a call, which must not return.
#pragma once

#include <signal.h>

#include <array>
#include <vector>

namespace difuse::testing {

/// While it lives, a segmentation fault or division by zero on this thread calls handler(context, signal, address).
/// Does nothing under the address sanitizer, which tells more.
class FaultGuard {
 public:
  using Handler = void (*)(void* context, int signal, const void* address);
  FaultGuard(Handler handler, void* context);
  ~FaultGuard();
  FaultGuard(const FaultGuard&) = delete;
  FaultGuard& operator=(const FaultGuard&) = delete;

 private:
  static constexpr std::array<int, 4> kSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
  std::array<struct sigaction, kSignals.size()> before_{};
  stack_t stack_before_{};
  std::vector<char> stack_;  ///< The fault may be that a thread's stack is too small.
};

}  // namespace difuse::testing
