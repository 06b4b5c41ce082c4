// From a graph as models/ builds it to something that runs: passes, memory plan, lowering, executor.
#pragma once

#include <memory>
#include <ostream>

#include "ir/options.h"
#include "runtime/executor.h"

namespace difuse::runtime {

struct CompileSettings {
  bool fuse = true;             ///< false: every op is a kernel of its own.
  bool reuse_memory = true;     ///< false: every value has its own bytes.
  std::ostream* log = nullptr;  ///< Where options.debug prints.
};

/// All but the executor: says what a graph will take without allocating it. Throws Error as the passes, the plan and
/// the lowering do.
codegen::CpuPlan plan(ir::Graph graph, const ir::Options& options, int threads, const CompileSettings& settings = {});

/// The executor of plan().
std::unique_ptr<Executor> compile(ir::Graph graph, const ir::Options& options, int threads,
                                  const CompileSettings& settings = {});

}  // namespace difuse::runtime
