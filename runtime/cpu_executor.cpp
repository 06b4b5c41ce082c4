#include "runtime/cpu_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <numeric>

#include "ir/error.h"
#include "runtime/machine_memory.h"

namespace difuse::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::align_val_t kAlignment{4096};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class Copied : public Fetch {
 public:
  explicit Copied(std::span<const std::byte> bytes) : bytes_(bytes.begin(), bytes.end()) {}
  std::span<const std::byte> bytes() override { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

void CpuExecutor::Free::operator()(std::byte* memory) const { ::operator delete[](memory, kAlignment); }

CpuExecutor::Memory CpuExecutor::allocate(int64_t bytes) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  Memory memory(static_cast<std::byte*>(::operator new[](size, kAlignment)));
  std::memset(memory.get(), 0, size);
  return memory;
}

CpuExecutor::CpuExecutor(codegen::CpuPlan plan, int threads)
    : CpuExecutor(std::make_unique<codegen::CpuPlan>(std::move(plan)), threads) {}

CpuExecutor::CpuExecutor(std::unique_ptr<codegen::CpuPlan> plan, int threads)
    : Executor(plan->graph, plan->memory), plan_(std::move(plan)) {
  if (threads < 1) {
    throw Error(fmt::format("{} threads", threads), "give at least one thread", ExitCode::wrong_usage);
  }
  const int64_t bytes = plan_->memory.arena_bytes + plan_->workspace_bytes + threads * plan_->scratch_bytes;
  require_machine_memory(bytes, fmt::format("the graph \"{}\"", plan_->graph.name()));
  try {
    arena_ = allocate(plan_->memory.arena_bytes);
    workspace_ = allocate(plan_->workspace_bytes);
    for (int i = 0; i < threads; ++i) {
      scratch_memory_.push_back(allocate(plan_->scratch_bytes));
      scratch_.push_back(scratch_memory_.back().get());
    }
  } catch (const std::bad_alloc&) {
    throw Error(fmt::format("no memory for the graph \"{}\": it needs {:.1f} MiB", plan_->graph.name(),
                            static_cast<double>(bytes) / (1 << 20)),
                "use a smaller batch or model");
  }
  team_ = std::make_unique<codegen::ThreadTeam>(threads);
  seconds_.resize(plan_->kernels.size());
  fill_leaves();
}

void CpuExecutor::upload(int64_t offset, std::span<const std::byte> bytes, int) {
  std::ranges::copy(bytes, arena_.get() + offset);
}

void CpuExecutor::download(int64_t offset, std::span<std::byte> bytes) const {
  std::copy_n(arena_.get() + offset, bytes.size(), bytes.begin());
}

std::unique_ptr<Fetch> CpuExecutor::start_fetch(int64_t offset, int64_t bytes) const {
  return std::make_unique<Copied>(std::span(arena_.get() + offset, static_cast<size_t>(bytes)));
}

void CpuExecutor::run() {
  if (once_is_due()) {
    for (const auto& kernel : plan_->once) kernel->run(context());
    set_once_is_due(false);
  }
  if (!profiling_) {
    for (const auto& kernel : plan_->kernels) kernel->run(context());
    return;
  }
  for (size_t i = 0; i < plan_->kernels.size(); ++i) {
    const auto start = Clock::now();
    plan_->kernels[i]->run(context());
    seconds_[i].push_back(seconds_since(start));
  }
}

std::vector<double> CpuExecutor::time_steps(int count) {
  std::vector<double> seconds;
  for (int i = 0; i < count; ++i) {
    const auto start = Clock::now();
    run();
    seconds.push_back(seconds_since(start));
  }
  return seconds;
}

void CpuExecutor::run_observed(NodeObserver& observer) {
  for (const auto* kernels : {&plan_->once, &plan_->kernels}) {
    for (size_t i = 0; i < kernels->size();) {
      const int node = (*kernels)[i]->node;
      observer.before(node);
      for (; i < kernels->size() && (*kernels)[i]->node == node; ++i) (*kernels)[i]->run(context());
      observer.after(node);
    }
  }
  set_once_is_due(false);
}

OnceKernels CpuExecutor::once_kernels() const {
  OnceKernels kernels{std::ssize(plan_->once), 0};
  for (const auto& kernel : plan_->once) kernels.bytes += kernel->bytes;
  return kernels;
}

std::vector<KernelProfile> CpuExecutor::profile() const {
  std::vector<KernelProfile> rows;
  for (size_t i = 0; i < plan_->kernels.size(); ++i) {
    const codegen::CpuKernel& k = *plan_->kernels[i];
    const double sum = std::accumulate(seconds_[i].begin(), seconds_[i].end(), 0.0);
    rows.push_back({k.name, k.implementation, k.node, static_cast<int64_t>(seconds_[i].size()), sum,
                    median(seconds_[i]), k.bytes, k.flops});
  }
  return rows;
}

}  // namespace difuse::runtime
