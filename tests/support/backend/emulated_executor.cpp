#include "tests/support/backend/emulated_executor.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "codegen/cuda/lower_cuda.h"
#include "passes/memory_plan.h"
#include "tests/support/cuda_emulator/emulated_kernel.h"

namespace difuse::testing {

namespace {
constexpr std::align_val_t kAlignment{256};
}  // namespace

void EmulatedExecutor::Free::operator()(std::byte* memory) const { ::operator delete[](memory, kAlignment); }

/// Not a number, whatever type it is read as: what is read before it is written shows.
EmulatedExecutor::Memory EmulatedExecutor::allocate(int64_t bytes) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  Memory memory(static_cast<std::byte*>(::operator new[](size, kAlignment)));
  std::memset(memory.get(), 0xff, size);
  return memory;
}

EmulatedExecutor::EmulatedExecutor(codegen::cuda::CudaPlan plan)
    : EmulatedExecutor(std::make_unique<codegen::cuda::CudaPlan>(std::move(plan))) {}

EmulatedExecutor::EmulatedExecutor(std::unique_ptr<codegen::cuda::CudaPlan> plan)
    : Executor(plan->graph, plan->memory),
      plan_(std::move(plan)),
      arena_(allocate(plan_->memory.arena_bytes)),
      workspace_(allocate(plan_->workspace_bytes)) {
  fill_leaves();
}

void EmulatedExecutor::upload(int64_t offset, std::span<const std::byte> bytes, int) {
  std::ranges::copy(bytes, arena_.get() + offset);
}

void EmulatedExecutor::download(int64_t offset, std::span<std::byte> bytes) const {
  std::copy_n(arena_.get() + offset, bytes.size(), bytes.begin());
}

void EmulatedExecutor::run() {
  const EmulatorOptions options{.find_races = true};
  if (once_is_due()) run_emulated(*plan_, plan_->once, arena_.get(), workspace_.get(), options);
  set_once_is_due(false);
  run_emulated(*plan_, arena_.get(), workspace_.get(), options);
}

std::unique_ptr<EmulatedExecutor> lower_emulated(const ir::Graph& graph, bool reuse_memory,
                                                 const ir::DeviceSpec* device) {
  passes::MemoryPlan memory = passes::plan_memory(graph, {.reuse = reuse_memory});
  const ir::DeviceSpec& spec = device != nullptr ? *device : *ir::find_device_spec("h100");
  return std::make_unique<EmulatedExecutor>(codegen::cuda::lower_cuda(graph, std::move(memory), spec));
}

}  // namespace difuse::testing
