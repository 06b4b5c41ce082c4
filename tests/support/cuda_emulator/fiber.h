// Stacks that take turns on one thread of the host.
#pragma once

#include <cstddef>
#include <vector>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace difuse::testing {

/// Where a stack stands while another one runs.
struct Context {
#ifdef __x86_64__
  void* stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
  void* fake_stack = nullptr;  ///< The address sanitizer's.
  const void* bottom = nullptr;
  size_t bytes = 0;
};

/// Leaves `from`, the running one, and goes on where `to` stands.
void switch_context(Context& from, Context& to);

/// Memory for stacks of 64 KiB (more with the address sanitizer), each below a page that nothing can be written to.
class StackPool {
 public:
  StackPool() = default;
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  void reserve(size_t count);
  const unsigned char* begin() const { return reinterpret_cast<const unsigned char*>(memory_); }
  const unsigned char* end() const;
  /// A context that calls entry(argument) on stack number `index` when it is switched to. `entry` never returns.
  Context start(size_t index, void (*entry)(void*), void* argument);

 private:
  void release();

  std::byte* memory_ = nullptr;
  size_t count_ = 0;
};

}  // namespace difuse::testing
