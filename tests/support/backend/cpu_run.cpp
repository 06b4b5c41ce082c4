#include "tests/support/backend/cpu_run.h"

#include <gtest/gtest.h>

#include "codegen/cpu/lower_cpu.h"
#include "codegen/cpu/plain.h"
#include "passes/memory_plan.h"
#include "runtime/check.h"
#include "runtime/cpu_executor.h"
#include "runtime/tensor_bytes.h"

namespace difuse::testing {

Bytes encode(const ir::Tensor& tensor) {
  Bytes bytes(static_cast<size_t>(tensor.type.bytes()));
  runtime::encode(tensor.data, tensor.type.dtype, bytes);
  return bytes;
}

ir::Tensor decode(const ir::Type& type, const Bytes& bytes) {
  return ir::Tensor(type, runtime::decode(bytes, type.dtype));
}

std::unique_ptr<runtime::Executor> lower(const ir::Graph& graph, const CpuSettings& settings) {
  return lower(graph, passes::plan_memory(graph, {.reuse = settings.reuse_memory}), settings);
}

std::unique_ptr<runtime::Executor> lower(const ir::Graph& graph, passes::MemoryPlan memory,
                                         const CpuSettings& settings) {
  std::unique_ptr<codegen::Contractions> room;
  if (settings.plain) {
    room = std::make_unique<codegen::PlainContractions>();
  } else {
    room = codegen::make_contractions();
  }
  return std::make_unique<runtime::CpuExecutor>(codegen::lower_cpu(graph, std::move(memory), *room), settings.threads);
}

CpuRun run(runtime::Executor& executor, const ir::TensorMap& inputs, const ir::TensorMap& states, int steps) {
  for (const auto& [name, t] : inputs) executor.write_input(name, encode(t));
  for (const auto& [name, t] : states) executor.write_state(name, encode(t));
  for (int i = 0; i < steps; ++i) executor.run();
  CpuRun result;
  const ir::Graph& graph = executor.graph();
  for (const ir::NamedValue& n : graph.outputs()) {
    Bytes bytes(static_cast<size_t>(graph.type(n.value).bytes()));
    executor.read_output(n.name, bytes);
    result.outputs[n.name] = std::move(bytes);
  }
  for (int id : graph.leaves(ir::Op::state)) {
    Bytes bytes(static_cast<size_t>(graph.node(id).types[0].bytes()));
    executor.read_state(graph.node(id).as<ir::LeafAttrs>().name, bytes);
    result.states[graph.node(id).as<ir::LeafAttrs>().name] = std::move(bytes);
  }
  return result;
}

CpuRun run_cpu(const ir::Graph& graph, const ir::TensorMap& inputs, const ir::TensorMap& states,
               const CpuSettings& settings) {
  return run(*lower(graph, settings), inputs, states, settings.steps);
}

void expect_near_reference(const ir::Graph& graph, const CpuRun& got, const ir::TensorMap& inputs,
                           const ir::TensorMap& states, double tolerance) {
  const ir::ReferenceResult want = ir::run_reference(graph, inputs, states);
  auto compare = [&](const std::string& name, const ir::Tensor& reference, const Bytes& bytes) {
    const ir::Tensor t = decode(reference.type, bytes);
    EXPECT_LE(ir::relative_error(t.data, reference.data), tolerance) << name << " of graph " << graph.name();
  };
  for (const auto& [name, t] : want.outputs) compare(name, t, got.outputs.at(name));
  for (const auto& [name, t] : want.states) compare(name, t, got.states.at(name));
}

void expect_nodes_agree(runtime::Executor& executor) {
  for (const runtime::NodeCheck& check : runtime::check_step(executor)) {
    EXPECT_TRUE(check.passed()) << "%" << check.node << " " << check.name << ": " << check.error << " of "
                                << check.tolerance << " (" << check.rule << ")";
  }
}

void expect_same(const CpuRun& a, const CpuRun& b, const std::string& what) {
  for (const auto& [name, bytes] : a.outputs) EXPECT_TRUE(bytes == b.outputs.at(name)) << name << ": " << what;
  for (const auto& [name, bytes] : a.states) EXPECT_TRUE(bytes == b.states.at(name)) << name << ": " << what;
}

}  // namespace difuse::testing
