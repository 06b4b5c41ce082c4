// The GPU that tests run on, where there is one.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/cuda/cuda_plan.h"
#include "ir/graph.h"
#include "passes/precision.h"
#include "runtime/cuda/executor.h"
#include "runtime/target.h"

namespace difuse::testing {

/// GPU 0 with a cache of kernels in the build tree that all tests share. Null where there is no GPU or no NVRTC;
/// `reason` then says why.
const runtime::Target* find_gpu(std::string* reason);

/// The graph as it is, without passes, for the GPU.
codegen::cuda::CudaPlan plan_for(const runtime::Target& gpu, const ir::Graph& graph, bool reuse_memory = true);

/// Compiles what several plans need at once, on all cores, into the GPU's cache: one after the other would take many
/// times as long.
void compile_together(const runtime::Target& gpu, std::span<const codegen::cuda::CudaPlan> plans);

std::unique_ptr<runtime::CudaExecutor> execute(const runtime::Target& gpu, codegen::cuda::CudaPlan plan,
                                               const runtime::CudaExecutorOptions& options = {});

/// The same ones every time.
void write_random_inputs(runtime::Executor& executor, const ir::Graph& graph);

/// Compiles the graphs through every pass and compares each node, on random inputs, with the reference.
void expect_nodes_agree(const runtime::Target& gpu, std::span<const ir::Graph> graphs, passes::Precision precision);

}  // namespace difuse::testing

/// In SetUp or a test's body: `const runtime::Target& gpu = *...` is there, or the test is skipped with the reason.
#define DIFUSE_NEED_GPU(gpu)                                                                       \
  std::string gpu##_reason;                                                                        \
  const ::difuse::runtime::Target* const gpu##_found = ::difuse::testing::find_gpu(&gpu##_reason); \
  if (gpu##_found == nullptr) GTEST_SKIP() << gpu##_reason;                                        \
  const ::difuse::runtime::Target& gpu = *gpu##_found
