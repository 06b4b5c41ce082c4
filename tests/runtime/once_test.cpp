// What is the same in every step runs once: fewer kernels a step, the same bits, and new ones after new parameters.
#include <gtest/gtest.h>

#include "ir/builder.h"
#include "runtime/compile.h"
#include "runtime/cpu_executor.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/backend/emulated_executor.h"
#include "tests/support/op_rows.h"

namespace difuse::runtime {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Value;

/// Two convolutions whose filters are views of one vector, and a state that every step replaces.
Graph sampling_step() {
  Graph graph("sampling_step");
  Builder b(graph);
  const Value flat = b.state("params", {DType::f32, {2 * 576}}), x = b.state("x", {DType::f32, {2, 8, 8, 8}});
  const Value strength = b.state("strength", {DType::f32, {}});
  const auto filter = [&](int64_t i) { return b.view(flat, i * 576, {8, 3, 3, 8}); };
  const Value y = b.conv_fprop(b.silu(b.conv_fprop(b.silu(x), filter(0), 1, 1)), filter(1), 1, 1);
  graph.set_update("x", b.add(b.mul(x, 0.5), b.mul(y, b.broadcast_scalar(strength, b.shape(y)))));
  graph.set_output("y", y);
  return graph;
}

ir::Options without_hoist() {
  ir::Options options;
  options.disable = {"hoist"};
  return options;
}

CompileSettings bf16() {
  CompileSettings settings;
  settings.precision = passes::Precision::bf16;
  return settings;
}

/// Trajectories of several steps with one set of parameters, with another, and with the first again; between two of
/// them other states are written. Every step's bits.
std::vector<testing::CpuRun> trajectories(Executor& executor) {
  const Graph graph = sampling_step();
  std::vector<testing::CpuRun> runs;
  ir::TensorMap states = testing::random_leaves(graph, ir::Op::state, 1);
  const ir::TensorMap others = testing::random_leaves(graph, ir::Op::state, 2);
  const ir::Tensor first = states.at("params");
  for (const ir::Tensor* params : {&first, &others.at("params"), &first}) {
    states.at("params") = *params;
    for (const int steps : {1, 3}) runs.push_back(testing::run(executor, {}, states, steps));
    executor.write_state("x", testing::encode(others.at("x")));
    runs.push_back(testing::run(executor, {}, {}, 2));
  }
  return runs;
}

void expect_same_trajectories(Executor& once, Executor& always) {
  const auto got = trajectories(once), expected = trajectories(always);
  for (size_t i = 0; i < expected.size(); ++i) {
    testing::expect_same(got[i], expected[i], "trajectory " + std::to_string(i));
  }
  testing::expect_same(got[0], got[6], "the first parameters again");
  EXPECT_NE(got[0].outputs.at("y"), got[3].outputs.at("y"));
}

TEST(OnceKernels, OfTheCpuRunWhenParametersAreWritten) {
  CpuExecutor once(plan_cpu(sampling_step(), {}, 2, bf16()), 2);
  CpuExecutor always(plan_cpu(sampling_step(), without_hoist(), 2, bf16()), 2);
  EXPECT_EQ(once.plan().once.size(), 1);
  EXPECT_EQ(always.plan().once.size(), 0);
  EXPECT_EQ(once.plan().kernels.size() + 1, always.plan().kernels.size());
  EXPECT_EQ(once.once_kernels().launches, 1);
  EXPECT_EQ(once.once_kernels().bytes, 1152 * 6);
  expect_same_trajectories(once, always);
}

TEST(OnceKernels, OfEachOpAloneAsWell) {
  CompileSettings settings = bf16();
  settings.fuse = settings.reuse_memory = false;
  CpuExecutor once(plan_cpu(sampling_step(), {}, 1, settings), 1);
  CpuExecutor always(plan_cpu(sampling_step(), without_hoist(), 1, settings), 1);
  EXPECT_EQ(once.plan().once.size(), 2) << "the rounding, and a number that is repeated for a small image";
  expect_same_trajectories(once, always);
}

TEST(OnceKernels, OfCudaRunWhenParametersAreWritten) {
  const ir::DeviceSpec& device = *ir::find_device_spec("sm_80");
  testing::EmulatedExecutor once(plan_cuda(sampling_step(), {}, device, bf16()));
  testing::EmulatedExecutor always(plan_cuda(sampling_step(), without_hoist(), device, bf16()));
  EXPECT_EQ(once.plan().once.size(), 1);
  EXPECT_EQ(always.plan().once.size(), 0);
  EXPECT_EQ(once.plan().calls.size() + 1, always.plan().calls.size());
  EXPECT_EQ(once.plan().sources.size(), always.plan().sources.size());
  expect_same_trajectories(once, always);
}

}  // namespace
}  // namespace difuse::runtime
