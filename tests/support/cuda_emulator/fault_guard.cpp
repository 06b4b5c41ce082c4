#include "tests/support/cuda_emulator/fault_guard.h"

namespace difuse::testing {

#ifdef __SANITIZE_ADDRESS__

FaultGuard::FaultGuard(Handler, void*) {}
FaultGuard::~FaultGuard() = default;

#else

namespace {

thread_local FaultGuard::Handler current_handler = nullptr;
thread_local void* current_context = nullptr;

void handle(int signal, siginfo_t* info, void*) {
  if (current_handler != nullptr) current_handler(current_context, signal, info->si_addr);
  struct sigaction standard {};  // Another thread's fault: ends the process when the instruction is tried again.
  standard.sa_handler = SIG_DFL;
  sigaction(signal, &standard, nullptr);
}

}  // namespace

FaultGuard::FaultGuard(Handler handler, void* context) : stack_(64 << 10) {
  current_handler = handler;
  current_context = context;
  stack_t stack{};
  stack.ss_sp = stack_.data();
  stack.ss_size = stack_.size();
  sigaltstack(&stack, &stack_before_);
  struct sigaction action {};
  action.sa_sigaction = &handle;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;  // The handler does not return.
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &before_[i]);
}

FaultGuard::~FaultGuard() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before_[i], nullptr);
  sigaltstack(&stack_before_, nullptr);
  current_handler = nullptr;
}

#endif

}  // namespace difuse::testing
