// What is carried from step to step: fewer bytes, the same bits, and new ones after new parameters.
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

/// Two convolutions whose filters are parts of one vector, which depends on their result in the next step.
Graph training_step() {
  constexpr int64_t kSize = 32 * 9 * 32;
  Graph graph("training_step");
  Builder b(graph);
  const Value params = b.state("params", {DType::f32, {2 * kSize}}), x = b.input("x", {DType::f32, {2, 8, 8, 32}});
  const auto filter = [&](int64_t i) { return b.view(params, i * kSize, {32, 3, 3, 32}); };
  const Value hidden = b.silu(b.conv_fprop(x, filter(0), 1, 1)), y = b.conv_fprop(hidden, filter(1), 1, 1);
  const auto gradient = [&](Value image) { return b.conv_wgrad(image, y, {.stride = 1, .pad = 1, .r = 3, .s = 3}); };
  const Value whole = b.pack({gradient(x), gradient(hidden)}, {0, kSize}, 2 * kSize);
  graph.set_update("params", b.sub(params, b.mul(whole, 1e-3)));
  graph.set_output("y", y);
  return graph;
}

ir::Options without(std::vector<std::string> passes) {
  ir::Options options;
  options.disable = std::move(passes);
  return options;
}

CompileSettings with(passes::Precision precision) {
  CompileSettings settings;
  settings.precision = precision;
  return settings;
}

/// Several steps, several more with other parameters, and the first again: every part's bits.
std::vector<testing::CpuRun> trainings(Executor& executor) {
  const Graph graph = training_step();
  const ir::TensorMap inputs = testing::random_leaves(graph, ir::Op::input, 1);
  std::vector<testing::CpuRun> runs;
  for (const uint64_t seed : {2u, 3u, 2u}) {
    runs.push_back(testing::run(executor, inputs, testing::random_leaves(graph, ir::Op::state, seed), 1));
    runs.push_back(testing::run(executor, inputs, {}, 3));
  }
  return runs;
}

void expect_same_trainings(Executor& carries, Executor& rounds) {
  const auto got = trainings(carries), expected = trainings(rounds);
  for (size_t i = 0; i < expected.size(); ++i) {
    testing::expect_same(got[i], expected[i], "part " + std::to_string(i));
  }
  testing::expect_same(got[0], got[4], "the first parameters again");
  EXPECT_NE(got[0].outputs.at("y"), got[1].outputs.at("y"));
  EXPECT_NE(got[0].outputs.at("y"), got[2].outputs.at("y"));
}

class Carry : public ::testing::TestWithParam<passes::Precision> {};

TEST_P(Carry, OnTheCpuGivesTheSameBits) {
  CpuExecutor carries(plan_cpu(training_step(), {}, 2, with(GetParam())), 2);
  CpuExecutor rounds(plan_cpu(training_step(), without({"carry"}), 2, with(GetParam())), 2);
  EXPECT_EQ(carries.plan().once.size(), 1);
  EXPECT_EQ(carries.plan().kernels.size() + 1, rounds.plan().kernels.size());
  expect_same_trainings(carries, rounds);
}

TEST_P(Carry, WithoutWhatRunsOnceGivesTheSameBits) {
  CpuExecutor carries(plan_cpu(training_step(), without({"hoist"}), 2, with(GetParam())), 2);
  CpuExecutor rounds(plan_cpu(training_step(), without({"carry", "hoist"}), 2, with(GetParam())), 2);
  EXPECT_EQ(carries.plan().once.size(), 0);
  expect_same_trainings(carries, rounds);
}

TEST_P(Carry, UnfusedGivesTheSameBits) {
  CompileSettings settings = with(GetParam());
  settings.fuse = settings.reuse_memory = false;
  CpuExecutor carries(plan_cpu(training_step(), {}, 1, settings), 1);
  CpuExecutor rounds(plan_cpu(training_step(), without({"carry"}), 1, settings), 1);
  expect_same_trainings(carries, rounds);
}

TEST_P(Carry, OnCudaGivesTheSameBits) {
  const ir::DeviceSpec& device = *ir::find_device_spec("sm_80");
  testing::EmulatedExecutor carries(plan_cuda(training_step(), {}, device, with(GetParam())));
  testing::EmulatedExecutor rounds(plan_cuda(training_step(), without({"carry"}), device, with(GetParam())));
  EXPECT_EQ(carries.plan().once.size(), 1);
  EXPECT_EQ(rounds.plan().once.size(), 0);
  expect_same_trainings(carries, rounds);
}

INSTANTIATE_TEST_SUITE_P(Precisions, Carry, ::testing::Values(passes::Precision::bf16, passes::Precision::tf32),
                         [](const auto& test) { return std::string(passes::to_string(test.param)); });

}  // namespace
}  // namespace difuse::runtime
