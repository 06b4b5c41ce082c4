#include "runtime/compile.h"

#include <algorithm>
#include <filesystem>

#include "codegen/cpu/contractions.h"
#include "codegen/cpu/lower_cpu.h"
#include "codegen/cuda/compile_decided.h"
#include "codegen/cuda/join/nodes.h"
#include "codegen/cuda/lower_cuda.h"
#include "codegen/prologues.h"
#include "passes/memory_plan.h"
#include "passes/pipeline.h"
#include "runtime/cpu_executor.h"
#include "runtime/cuda/executor.h"
#include "runtime/kernel_dump.h"

namespace difuse::runtime {
namespace {

ir::DeviceSpec cpu_spec(int threads) {
  ir::DeviceSpec device;
  device.processors = threads;
  return device;
}

ir::Graph optimize(ir::Graph graph, const ir::Options& options, const ir::DeviceSpec& device,
                   const CompileSettings& settings) {
  passes::FusionSettings fusion = codegen::prologue_settings(settings.prologues, device);
  if (settings.choices != nullptr) {
    fusion.choices = *settings.choices;
  } else if (settings.tuned != nullptr && settings.prologues == passes::Prologues::automatic) {
    fusion.choices = settings.tuned->choices();
  }
  return passes::run_pipeline(std::move(graph), device,
                              {.options = &options,
                               .fuse = settings.fuse,
                               .precision = settings.precision,
                               .fusion = std::move(fusion),
                               .log = settings.log,
                               .report = settings.report});
}

/// Whether nodes may be left out of most steps: the pass that brings them together decides.
bool runs_once(const ir::Options& options) { return std::ranges::count(options.disable, "hoist") == 0; }

}  // namespace

ir::DeviceSpec Target::spec() const { return cuda ? cuda->spec() : cpu_spec(threads); }

codegen::CpuPlan plan_cpu(ir::Graph graph, const ir::Options& options, int threads, const CompileSettings& settings) {
  graph = optimize(std::move(graph), options, cpu_spec(threads), settings);
  passes::MemoryPlan memory = passes::plan_memory(graph, {.reuse = settings.reuse_memory, .once = runs_once(options)});
  const auto contractions = codegen::make_contractions();
  return codegen::lower_cpu(std::move(graph), std::move(memory), *contractions);
}

codegen::cuda::CudaPlan plan_cuda(ir::Graph graph, const ir::Options& options, const ir::DeviceSpec& device,
                                  const CompileSettings& settings) {
  graph = optimize(std::move(graph), options, device, settings);
  passes::MemoryPlan memory;
  if (settings.fuse && settings.reuse_memory) {
    codegen::cuda::JoinedNodes joined =
        codegen::cuda::join_equal_nodes(std::move(graph), device, settings.tuned, runs_once(options));
    graph = std::move(joined.graph);
    memory = std::move(joined.memory);
  } else {
    memory = passes::plan_memory(graph, {.reuse = settings.reuse_memory, .once = runs_once(options)});
  }
  codegen::cuda::CudaPlan plan = codegen::cuda::lower_cuda(std::move(graph), std::move(memory), device, settings.tuned);
  // Beside the graph's IR, which the pipeline has written.
  if (!options.dump.empty()) {
    dump_sources(std::filesystem::path(options.dump) / plan.graph.name() / "kernels", plan);
  }
  return plan;
}

codegen::TuningStore tuning_store(const ir::Options& options, const CudaDevice& device, std::ostream* log) {
  return {codegen::tuning_folder(options), device.tuned_device(), [log](const std::string& line) {
            if (log != nullptr) *log << line << "\n";
          }};
}

codegen::TuningTable known_decisions(const ir::Options& options, const CudaDevice& device, std::ostream* log) {
  if (options.tune == ir::Tuning::off) return {};
  return tuning_store(options, device, log).all();
}

std::shared_ptr<codegen::KernelCache> open_kernel_cache(const ir::Options& options, std::ostream* log) {
  return std::make_shared<codegen::KernelCache>(codegen::kernel_cache_folder(options), [log](const std::string& line) {
    if (log != nullptr) *log << line << "\n";
  });
}

std::vector<std::shared_ptr<const codegen::CompiledKernel>> compile_kernels(const codegen::cuda::CudaPlan& plan,
                                                                            const ir::Options& options,
                                                                            codegen::KernelCache& cache,
                                                                            int newest_major,
                                                                            const CompileSettings& settings) {
  codegen::KernelCompiler compiler(cache, {.toolkit = options.cuda_toolkit, .newest_major = newest_major});
  return codegen::require_all(compiler.compile(plan.sources, settings.progress));
}

std::vector<std::shared_ptr<const codegen::CompiledKernel>> compile_kernels(
    codegen::cuda::CudaPlan& plan, const ir::DeviceSpec& device, codegen::TuningTable tiles, const ir::Options& options,
    codegen::KernelCache& cache, int newest_major, const CompileSettings& settings) {
  codegen::KernelCompiler compiler(cache, {.toolkit = options.cuda_toolkit, .newest_major = newest_major});
  const auto compile = [&](std::span<const codegen::CudaSource> sources) {
    return compiler.compile(sources, settings.progress);
  };
  const auto warn = [&](const std::string& line) {
    if (settings.log != nullptr) *settings.log << line << "\n";
  };
  return codegen::require_all(codegen::cuda::compile_decided(plan, device, tiles, compile, warn));
}

std::unique_ptr<Executor> compile(ir::Graph graph, const ir::Options& options, const Target& target,
                                  const CompileSettings& settings) {
  if (!target.is_cuda()) {
    return std::make_unique<CpuExecutor>(plan_cpu(std::move(graph), options, target.threads, settings), target.threads);
  }
  const codegen::TuningTable tuned =
      settings.tuned != nullptr ? *settings.tuned : known_decisions(options, *target.cuda, settings.log);
  CompileSettings with_tuned = settings;
  with_tuned.tuned = &tuned;
  const ir::DeviceSpec& device = target.cuda->spec();
  codegen::cuda::CudaPlan plan = plan_cuda(std::move(graph), options, device, with_tuned);
  const auto cache = target.cache ? target.cache : open_kernel_cache(options, settings.log);
  const auto kernels =
      compile_kernels(plan, device, tuned, options, *cache, target.cuda->driver().newest_toolkit(), settings);
  return std::make_unique<CudaExecutor>(target.cuda, std::move(plan), kernels,
                                        CudaExecutorOptions{.graphs = options.cuda_graphs, .check = options.debug});
}

}  // namespace difuse::runtime
