#include "tests/support/backend/gpu.h"

#include <gtest/gtest.h>

#include <optional>

#include "codegen/cuda/lower_cuda.h"
#include "codegen/jit/nvrtc.h"
#include "passes/memory_plan.h"
#include "runtime/compile.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/op_rows.h"

namespace difuse::testing {
namespace {

/// None: tiles are the estimates', and one that is refused gives way to the next, as in the product.
const codegen::TuningTable kNoDecisions;

struct Found {
  std::optional<runtime::Target> target;
  std::string reason;
};

Found look() {
  Found found;
  const auto device = runtime::CudaDevice::find(0, &found.reason);
  if (!device) return found;
  const int newest = device->driver().version() / 1000;
  if (!codegen::NvrtcLibrary::load({.toolkit = {}, .newest_major = newest}, &found.reason)) return found;
  found.target.emplace(device, std::make_shared<codegen::KernelCache>(GPU_KERNEL_CACHE));
  return found;
}

}  // namespace

const runtime::Target* find_gpu(std::string* reason) {
  static const Found kFound = look();
  if (kFound.target) return &*kFound.target;
  *reason = kFound.reason;
  return nullptr;
}

codegen::cuda::CudaPlan plan_for(const runtime::Target& gpu, const ir::Graph& graph, bool reuse_memory) {
  return codegen::cuda::lower_cuda(graph, passes::plan_memory(graph, {.reuse = reuse_memory}), gpu.spec(),
                                   &kNoDecisions);
}

void compile_together(const runtime::Target& gpu, std::span<const codegen::cuda::CudaPlan> plans) {
  codegen::cuda::CudaPlan all;
  for (const codegen::cuda::CudaPlan& plan : plans) {
    all.sources.insert(all.sources.end(), plan.sources.begin(), plan.sources.end());
  }
  // What is refused gives way to another tile when its plan's turn comes.
  codegen::KernelCompiler compiler(*gpu.cache, {.toolkit = {}, .newest_major = gpu.cuda->driver().newest_toolkit()});
  compiler.compile(all.sources);
}

std::unique_ptr<runtime::CudaExecutor> execute(const runtime::Target& gpu, codegen::cuda::CudaPlan plan,
                                               const runtime::CudaExecutorOptions& options) {
  const auto kernels =
      runtime::compile_kernels(plan, gpu.spec(), kNoDecisions, {}, *gpu.cache, gpu.cuda->driver().newest_toolkit());
  return std::make_unique<runtime::CudaExecutor>(gpu.cuda, std::move(plan), kernels, options);
}

void expect_nodes_agree(const runtime::Target& gpu, std::span<const ir::Graph> graphs, passes::Precision precision) {
  runtime::CompileSettings settings;
  settings.precision = precision;
  settings.tuned = &kNoDecisions;
  std::vector<codegen::cuda::CudaPlan> plans;
  for (const ir::Graph& graph : graphs) plans.push_back(runtime::plan_cuda(graph, {}, gpu.spec(), settings));
  compile_together(gpu, plans);
  for (size_t i = 0; i < plans.size(); ++i) {
    SCOPED_TRACE(graphs[i].name());
    const auto executor = execute(gpu, plans[i]);
    write_random_inputs(*executor, graphs[i]);
    expect_nodes_agree(*executor);
  }
}

void write_random_inputs(runtime::Executor& executor, const ir::Graph& graph) {
  for (const auto& [name, tensor] : random_leaves(graph, ir::Op::input, 1)) {
    executor.write_input(name, encode(tensor));
  }
}

}  // namespace difuse::testing
