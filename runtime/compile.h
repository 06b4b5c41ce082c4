// From a graph as models/ builds it to something that runs: passes, memory plan, lowering, kernels, executor.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <vector>

#include "codegen/cpu/cpu_plan.h"
#include "codegen/cuda/cuda_plan.h"
#include "codegen/jit/compiler.h"
#include "codegen/tune/store.h"
#include "ir/options.h"
#include "passes/fusion/choices.h"
#include "passes/fusion/report.h"
#include "passes/precision.h"
#include "runtime/executor.h"
#include "runtime/target.h"

namespace difuse::runtime {

struct CompileSettings {
  bool fuse = true;             ///< false: every op is a kernel of its own.
  bool reuse_memory = true;     ///< false: every value has its own bytes.
  std::ostream* log = nullptr;  ///< Where options.debug prints, and warnings go, a line each.
  passes::Precision precision = passes::Precision::f32;
  codegen::KernelCompiler::Progress progress{};  ///< Of compiling CUDA kernels.
  /// A tuner's decisions about CUDA kernels: their tiles and, where `prologues` is automatic and `choices` null, which
  /// contractions compute the image that they read. Null: estimates; `compile` then takes known_decisions.
  const codegen::TuningTable* tuned = nullptr;
  passes::FusionReport* report = nullptr;  ///< Filled when given.
  /// Whether contractions compute the image that they read, where the device's kernels can.
  passes::Prologues prologues = passes::Prologues::automatic;
  const passes::FusionChoices* choices = nullptr;  ///< Decisions about fusions. Null: those of `tuned`.
};

/// All but the executor: says what a graph will take without allocating it. With options.dump the IR around every pass
/// is written there, and for a GPU the kernels' sources (kernel_dump.h), all below the graph's name. Throws Error as
/// the passes, the plan and the lowering do, and where the dump cannot be written.
codegen::CpuPlan plan_cpu(ir::Graph graph, const ir::Options& options, int threads,
                          const CompileSettings& settings = {});
/// The same for a GPU, which need not be there.
codegen::cuda::CudaPlan plan_cuda(ir::Graph graph, const ir::Options& options, const ir::DeviceSpec& device,
                                  const CompileSettings& settings = {});

/// A cache of compiled kernels where the options say; its warnings go to `log`, where given, a line each.
std::shared_ptr<codegen::KernelCache> open_kernel_cache(const ir::Options& options, std::ostream* log);

/// A tuner's decisions for a GPU, where the options say; its warnings go to `log`, where given.
codegen::TuningStore tuning_store(const ir::Options& options, const CudaDevice& device, std::ostream* log);
/// What it knows; nothing where the options want estimates.
codegen::TuningTable known_decisions(const ir::Options& options, const CudaDevice& device, std::ostream* log);

/// The plan's kernels, in the order of its sources, from `cache` or compiled with an NVRTC that is no newer than
/// `newest_major`, where that is not 0. Throws Error when a kernel does not compile, or there is no NVRTC (wrong
/// usage).
std::vector<std::shared_ptr<const codegen::CompiledKernel>> compile_kernels(const codegen::cuda::CudaPlan& plan,
                                                                            const ir::Options& options,
                                                                            codegen::KernelCache& cache,
                                                                            int newest_major,
                                                                            const CompileSettings& settings = {});
/// The same where `tiles` decided about the plan's tiles: a tile that this NVRTC refuses is left out, with a line to
/// the log, and the plan changed.
std::vector<std::shared_ptr<const codegen::CompiledKernel>> compile_kernels(
    codegen::cuda::CudaPlan& plan, const ir::DeviceSpec& device, codegen::TuningTable tiles, const ir::Options& options,
    codegen::KernelCache& cache, int newest_major, const CompileSettings& settings = {});

/// Ready to run. A target may be written as a number of threads.
std::unique_ptr<Executor> compile(ir::Graph graph, const ir::Options& options, const Target& target,
                                  const CompileSettings& settings = {});

}  // namespace difuse::runtime
