#include "codegen/cpu/kernels/unit.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>

#include "codegen/cpu/thread_team.h"

namespace difuse::codegen::cpu {
namespace {

void run_unit(const Phase& phase, const CpuContext& context, int64_t index, int thread, bool fresh) {
  const int64_t segments = phase.segments();
  Unit unit{context.arena, context.workspace, context.scratch[static_cast<size_t>(thread)]};
  unit.index = index;
  unit.first = index / segments * phase.unit_images;
  unit.images = std::min(phase.unit_images, phase.images - unit.first);
  unit.fresh = fresh;
  if (phase.segment > 0) {
    unit.begin = index % segments * phase.segment;
    unit.end = std::min(unit.begin + phase.segment, phase.elements);
  }
  for (const auto& step : phase.steps) step->run(unit);
}

void run_phase(const Phase& phase, const CpuContext& context) {
  const int64_t units = phase.units();
  if (context.team.threads() == 1 || units == 1 || !phase.parallel) {
    for (int64_t i = 0; i < units; ++i) run_unit(phase, context, i, 0, i == 0);
    return;
  }
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr failure;
  int64_t failed = units;
  context.team.run([&](int thread) {
    bool fresh = true;
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < units; fresh = false) {
      try {
        run_unit(phase, context, i, thread, fresh);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (i < failed) {
          failed = i;
          failure = std::current_exception();
        }
      }
    }
  });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

void PhaseKernel::run(const CpuContext& context) const {
  for (const Phase& phase : phases) run_phase(phase, context);
}

}  // namespace difuse::codegen::cpu
