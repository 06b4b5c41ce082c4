#include "tests/support/cuda_emulator/fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace difuse::testing {
namespace {

constexpr size_t kStackBytes = 64 << 10;

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
size_t stride() { return kStackBytes + page_bytes(); }

}  // namespace

#ifdef __x86_64__

// What a function call preserves goes onto the stack that is left and comes from the stack that goes on.
asm(R"(
.text
.p2align 4
.type difuse_switch_stack, @function
difuse_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size difuse_switch_stack, .-difuse_switch_stack
.type difuse_start_stack, @function
difuse_start_stack:
  movq %r13, %rdi
  callq *%r12
  ud2
.size difuse_start_stack, .-difuse_start_stack
)");
extern "C" {
void difuse_switch_stack(void** save, void* go_on);
void difuse_start_stack();
}

namespace {

void switch_stack(Context& from, Context& to) { difuse_switch_stack(&from.stack_pointer, to.stack_pointer); }

void prepare(Context& context, std::byte* bottom, void (*entry)(void*), void* argument) {
  // At a function's first instruction the stack pointer is 8 below a multiple of 16.
  auto* top = reinterpret_cast<uintptr_t*>(bottom + kStackBytes) - 2;
  *--top = reinterpret_cast<uintptr_t>(&difuse_start_stack);
  *--top = 0;                                      // rbp
  *--top = 0;                                      // rbx
  *--top = reinterpret_cast<uintptr_t>(entry);     // r12
  *--top = reinterpret_cast<uintptr_t>(argument);  // r13
  *--top = 0;                                      // r14
  *--top = 0;                                      // r15
  context.stack_pointer = top;
}

}  // namespace

#else

namespace {

void switch_stack(Context& from, Context& to) { swapcontext(&from.context, &to.context); }

void call(unsigned entry_high, unsigned entry_low, unsigned argument_high, unsigned argument_low) {
  const auto entry = static_cast<uintptr_t>(entry_high) << 32 | entry_low;
  const auto argument = static_cast<uintptr_t>(argument_high) << 32 | argument_low;
  reinterpret_cast<void (*)(void*)>(entry)(reinterpret_cast<void*>(argument));
}

void prepare(Context& context, std::byte* bottom, void (*entry)(void*), void* argument) {
  getcontext(&context.context);
  context.context.uc_stack.ss_sp = bottom;
  context.context.uc_stack.ss_size = kStackBytes;
  context.context.uc_link = nullptr;
  const auto e = reinterpret_cast<uintptr_t>(entry), a = reinterpret_cast<uintptr_t>(argument);
  makecontext(&context.context, reinterpret_cast<void (*)()>(&call), 4, static_cast<unsigned>(e >> 32),
              static_cast<unsigned>(e), static_cast<unsigned>(a >> 32), static_cast<unsigned>(a));
}

}  // namespace

#endif

#ifdef __SANITIZE_ADDRESS__

namespace {

// The context that is being left, for the one that goes on to learn the first stack's extent from.
Context* left = nullptr;

void finish_switch(void* fake_stack) {
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(fake_stack, &bottom, &bytes);
  if (left != nullptr && left->bottom == nullptr) left->bottom = bottom, left->bytes = bytes;
}

struct Start {
  void (*entry)(void*);
  void* argument;
};

void enter(void* argument) {
  finish_switch(nullptr);
  const Start start = *static_cast<Start*>(argument);
  start.entry(start.argument);
}

}  // namespace

void switch_context(Context& from, Context& to) {
  left = &from;
  __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.bytes);
  switch_stack(from, to);
  finish_switch(from.fake_stack);
}

Context StackPool::start(size_t index, void (*entry)(void*), void* argument) {
  std::byte* const bottom = memory_ + index * stride() + page_bytes();
  // Frames that a launch left behind when it failed are still poisoned.
  __asan_unpoison_memory_region(bottom, kStackBytes);
  Context context;
  context.bottom = bottom;
  context.bytes = kStackBytes;
  auto* start = reinterpret_cast<Start*>(bottom);  // The far end of the stack is free to use until entry.
  *start = {entry, argument};
  prepare(context, bottom, &enter, start);
  return context;
}

#else

void switch_context(Context& from, Context& to) { switch_stack(from, to); }

Context StackPool::start(size_t index, void (*entry)(void*), void* argument) {
  Context context;
  prepare(context, memory_ + index * stride() + page_bytes(), entry, argument);
  return context;
}

#endif

StackPool::~StackPool() { release(); }

void StackPool::release() {
  if (memory_ == nullptr) return;
#ifdef __SANITIZE_ADDRESS__
  // Frames are left, not returned from, and what is mapped here next must not inherit their poison.
  __asan_unpoison_memory_region(memory_, count_ * stride());
#endif
  munmap(memory_, count_ * stride());
  memory_ = nullptr;
  count_ = 0;
}

const unsigned char* StackPool::end() const { return begin() + count_ * stride(); }

void StackPool::reserve(size_t count) {
  if (count <= count_) return;
  release();
  void* const memory =
      mmap(nullptr, count * stride(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory for the stacks of emulated threads");
  memory_ = static_cast<std::byte*>(memory);
  count_ = count;
  for (size_t i = 0; i < count; ++i) mprotect(memory_ + i * stride(), page_bytes(), PROT_NONE);
}

}  // namespace difuse::testing
