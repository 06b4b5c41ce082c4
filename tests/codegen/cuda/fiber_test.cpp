#include "tests/support/cuda_emulator/fiber.h"

#include <gtest/gtest.h>

#include <memory>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace difuse::testing {
namespace {

struct Switch {
  Context main, fiber;
  int calls = 0;
};

/// Leaves from a frame with an array whose borders the address sanitizer poisons, and never comes back to it.
void leave(void* argument) {
  auto& both = *static_cast<Switch*>(argument);
  volatile char array[40] = {1};
  both.calls += array[0];
  for (;;) switch_context(both.fiber, both.main);
}

TEST(StackPool, RunsEveryStack) {
  StackPool pool;
  pool.reserve(3);
  Switch both;
  for (size_t i = 0; i < 3; ++i) {
    both.fiber = pool.start(i, &leave, &both);
    switch_context(both.main, both.fiber);
    EXPECT_EQ(both.calls, static_cast<int>(i) + 1);
  }
}

#ifdef __SANITIZE_ADDRESS__

TEST(StackPool, WhatIsMappedNextIsNotPoisoned) {
  auto pool = std::make_unique<StackPool>();
  pool->reserve(2);
  Switch both;
  both.fiber = pool->start(0, &leave, &both);
  switch_context(both.main, both.fiber);
  auto* const begin = const_cast<unsigned char*>(pool->begin());
  const auto bytes = static_cast<size_t>(pool->end() - begin);
  ASSERT_NE(__asan_region_is_poisoned(begin, bytes), nullptr);
  pool.reset();
  EXPECT_EQ(__asan_region_is_poisoned(begin, bytes), nullptr);
}

#endif

}  // namespace
}  // namespace difuse::testing
