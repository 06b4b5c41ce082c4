#include "codegen/cpu/kernels/unit.h"

#include <omp.h>

#include <algorithm>
#include <exception>

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
  const int threads = static_cast<int>(std::min<int64_t>(std::ssize(context.scratch), units));
  if (threads <= 1 || !phase.parallel) {
    for (int64_t i = 0; i < units; ++i) run_unit(phase, context, i, 0, i == 0);
    return;
  }
  std::exception_ptr failure;
  int64_t failed = units;
#pragma omp parallel num_threads(threads)
  {
    const int thread = omp_get_thread_num();
    bool fresh = true;
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t i = 0; i < units; ++i) {
      try {
        run_unit(phase, context, i, thread, fresh);
      } catch (...) {  // No exception may leave a parallel loop.
#pragma omp critical(difuse_phase_failure)
        if (i < failed) {
          failed = i;
          failure = std::current_exception();
        }
      }
      fresh = false;
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace

void PhaseKernel::run(const CpuContext& context) const {
  for (const Phase& phase : phases) run_phase(phase, context);
}

}  // namespace difuse::codegen::cpu
