// Runs a graph on the CPU backend from and to the reference's tensors.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "ir/reference.h"
#include "runtime/executor.h"

namespace difuse::testing {

using Bytes = std::vector<std::byte>;

/// A tensor as the backend stores it, and back.
Bytes encode(const ir::Tensor& tensor);
ir::Tensor decode(const ir::Type& type, const Bytes& bytes);

struct CpuRun {
  std::map<std::string, Bytes> outputs, states;  ///< As stored: comparing them compares bits.
};

struct CpuSettings {
  int threads = 2;
  bool reuse_memory = true;
  bool plain = false;  ///< Plain loops instead of oneDNN.
  int steps = 1;
};

/// The graph as it is, without passes; with a memory plan of the caller's, or its own.
std::unique_ptr<runtime::Executor> lower(const ir::Graph& graph, const CpuSettings& settings = {});
std::unique_ptr<runtime::Executor> lower(const ir::Graph& graph, passes::MemoryPlan memory,
                                         const CpuSettings& settings = {});
CpuRun run(runtime::Executor& executor, const ir::TensorMap& inputs, const ir::TensorMap& states, int steps = 1);
CpuRun run_cpu(const ir::Graph& graph, const ir::TensorMap& inputs, const ir::TensorMap& states = {},
               const CpuSettings& settings = {});

/// Expects every output and state within `tolerance` of the reference.
void expect_near_reference(const ir::Graph& graph, const CpuRun& got, const ir::TensorMap& inputs,
                           const ir::TensorMap& states, double tolerance);
/// Expects that every node passes check_step(). Inputs and states have been written.
void expect_nodes_agree(runtime::Executor& executor);
/// Expects the same bits.
void expect_same(const CpuRun& a, const CpuRun& b, const std::string& what);

}  // namespace difuse::testing
