#include "runtime/compile.h"

#include "codegen/cpu/contractions.h"
#include "codegen/cpu/lower_cpu.h"
#include "passes/memory_plan.h"
#include "passes/pipeline.h"

namespace difuse::runtime {

codegen::CpuPlan plan(ir::Graph graph, const ir::Options& options, int threads, const CompileSettings& settings) {
  ir::DeviceSpec device;
  device.processors = threads;
  graph = passes::run_pipeline(std::move(graph), device,
                               {.options = &options, .fuse = settings.fuse, .log = settings.log, .report = nullptr});
  passes::MemoryPlan memory = passes::plan_memory(graph, {.reuse = settings.reuse_memory});
  const auto contractions = codegen::make_contractions();
  return codegen::lower_cpu(std::move(graph), std::move(memory), *contractions);
}

std::unique_ptr<Executor> compile(ir::Graph graph, const ir::Options& options, int threads,
                                  const CompileSettings& settings) {
  return std::make_unique<Executor>(plan(std::move(graph), options, threads, settings), threads);
}

}  // namespace difuse::runtime
