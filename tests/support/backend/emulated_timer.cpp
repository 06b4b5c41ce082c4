#include "tests/support/backend/emulated_timer.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "runtime/tensor_bytes.h"
#include "tests/support/cuda_emulator/emulated_kernel.h"

namespace difuse::testing {
namespace {

std::byte* aligned(std::vector<std::byte>& memory, int64_t bytes) {
  memory.resize(static_cast<size_t>(bytes) + 256);
  return memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256) % 256;
}

}  // namespace

EmulatedTimer::EmulatedTimer(const codegen::cuda::TuningSite& site, codegen::cuda::CudaPlan plan, Seconds seconds)
    : plan_(std::move(plan)),
      results_begin_(static_cast<size_t>(site.results_begin())),
      arena_(aligned(memory_, site.arena_bytes())),
      scratch_(aligned(workspace_, plan_.workspace_bytes)),
      expected_(static_cast<size_t>(site.arena_bytes()) - results_begin_),
      seconds_(std::move(seconds)) {
  for (const auto& operand : site.operands()) {
    std::vector<double> numbers(static_cast<size_t>(operand.type.elements()));
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i * 29 % 61) / 32 - 1;
    const std::span bytes(arena_ + operand.offset, static_cast<size_t>(operand.type.bytes()));
    runtime::encode(numbers, operand.type.dtype, bytes);
  }
}

bool EmulatedTimer::agrees(size_t candidate) {
  codegen::cuda::CudaPlan own = plan_;
  std::erase_if(own.calls, [&](const auto& call) { return call.node != static_cast<int>(candidate); });
  std::byte* const results = arena_ + results_begin_;
  std::memset(results, 0xff, expected_.size());
  run_emulated(own, arena_, scratch_);
  if (candidate == 0) std::copy_n(results, expected_.size(), expected_.begin());
  return std::equal(expected_.begin(), expected_.end(), results);
}

std::vector<std::vector<double>> EmulatedTimer::time(std::span<const size_t> candidates, int rounds) {
  std::vector<std::vector<double>> all;
  for (const size_t candidate : candidates) all.emplace_back(static_cast<size_t>(rounds), seconds_(candidate));
  return all;
}

}  // namespace difuse::testing
