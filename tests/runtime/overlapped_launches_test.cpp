// Launches that run beside the ones before them: which may, and that no bit depends on which of them is first.
#include <gtest/gtest.h>

#include <algorithm>

#include "codegen/cuda/join/overlap.h"
#include "codegen/cuda/lower_cuda.h"
#include "ir/builder.h"
#include "ir/error.h"
#include "passes/pipeline.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/backend/emulated_executor.h"
#include "tests/support/backend/joined_plan.h"
#include "tests/support/backend/opposite_order.h"
#include "tests/support/graphs/graphs.h"
#include "tests/support/op_rows.h"

namespace difuse::testing {
namespace {

using codegen::cuda::CudaPlan;
using codegen::cuda::KernelCall;
using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Value;

CudaPlan lowered(const Graph& graph, bool reuse_memory = true) {
  return codegen::cuda::lower_cuda(graph, passes::plan_memory(graph, {.reuse = reuse_memory}), hopper());
}

std::vector<bool> overlapping(const CudaPlan& plan) {
  std::vector<bool> found;
  for (const KernelCall& call : plan.calls) found.push_back(codegen::cuda::overlaps(call));
  return found;
}

void expect_same_bits(const Graph& graph, const CudaPlan& plan) {
  EmulatedExecutor in_order(plan), opposite(opposite_order(plan));
  const ir::TensorMap inputs = random_leaves(graph, ir::Op::input, 1), states = random_leaves(graph, ir::Op::state, 2);
  expect_same(run(in_order, inputs, states, 2), run(opposite, inputs, states, 2), "the opposite order");
}

TEST(OverlappedLaunches, WhatReadsNoResultOfThoseBeforeRunsBesideThem) {
  Graph graph("step");
  Builder b(graph);
  const Value x = b.input("x", {DType::f32, {4, 16}});
  const Value a = b.silu(x);
  graph.set_output("a", a);
  graph.set_output("b", b.tanh(x));
  graph.set_output("c", b.exp(x));
  graph.set_output("d", b.tanh(a));  // All up to the first have to be done.
  graph.set_output("e", b.exp(a));
  const CudaPlan plan = lowered(graph);
  EXPECT_EQ(overlapping(plan), (std::vector{false, true, true, false, true}));
  expect_same_bits(graph, plan);
}

TEST(OverlappedLaunches, MemoryThatIsReadIsNotOverwritten) {
  Graph graph("step");
  Builder b(graph);
  const Value x = b.input("x", {DType::f32, {4, 256}});
  graph.set_output("sum", b.reduce_sum(b.silu(x), {0}));
  graph.set_output("y", b.reduce_sum(b.tanh(x), {0}));  // Its tanh lies where the silu was.
  EXPECT_EQ(overlapping(lowered(graph)), (std::vector{false, false, false, false}));
  EXPECT_EQ(overlapping(lowered(graph, /*reuse_memory=*/false)), (std::vector{false, false, true, false}));
}

/// Sums in two stages: the parts of each lie in the workspace.
TEST(OverlappedLaunches, TheWorkspaceIsMemoryToo) {
  Graph graph("step");
  Builder b(graph);
  for (const char* name : {"x", "y"}) {
    const Value x = b.input(name, {DType::f32, {16, 32, 32, 8}});
    graph.set_output(name, b.reduce_sum(x, {0, 1, 2}));
  }
  const CudaPlan plan = lowered(graph);
  ASSERT_EQ(plan.calls.size(), 3);
  EXPECT_EQ(plan.calls[2].members, 2);
  EXPECT_EQ(overlapping(plan), (std::vector{false, true, false}));
  expect_same_bits(graph, plan);
}

TEST(OverlappedLaunches, AllMembersOfAJoinedLaunchAreSetAlike) {
  Graph graph("step");
  Builder b(graph);
  const Value x = b.input("x", {DType::f32, {4, 16}}), y = b.input("y", {DType::f32, {4, 16}});
  graph.set_output("c", b.exp(x));
  graph.set_output("a", b.silu(x));
  graph.set_output("b", b.silu(y));
  const CudaPlan plan = joined_plan(graph);
  ASSERT_EQ(plan.calls.size(), 2);
  const KernelCall& joined = plan.calls[1];
  ASSERT_EQ(joined.members, 2);
  EXPECT_TRUE(codegen::cuda::overlaps(joined));
  const size_t each = joined.arguments.size() / 2;
  EXPECT_EQ(joined.arguments[each - 2], joined.arguments[2 * each - 2]);
  expect_same_bits(graph, plan);
}

TEST(OverlappedLaunches, ABlocksGradientsKeepTheirBits) {
  const Graph graph = passes::run_pipeline(tests::norm_block(2, 8, 8, 8, 2), hopper(), {});
  const CudaPlan plan = joined_plan(graph);
  EXPECT_GT(std::ranges::count(overlapping(plan), true), 2);
  expect_same_bits(graph, plan);
}

/// A convolution whose filter is made last, or before its image: of two tensors, one after the other.
Graph convolution(bool makes_filter_last) {
  Graph graph("step");
  Builder b(graph);
  const ir::Shape image = {2, 16, 16, 64}, filter = {64, 3, 3, 64};
  const Value x = b.input("x", {DType::f32, image}), w = b.input("w", {DType::f32, filter});
  const Value first = b.cast(makes_filter_last ? x : w, DType::bf16);
  const Value sums = b.reduce_sum(b.cast(first, DType::f32), {0, 1, 2});
  const Value then =
      makes_filter_last ? b.add(w, b.broadcast(sums, filter, {3})) : b.add(x, b.broadcast(sums, image, {3}));
  const Value second = b.cast(then, DType::bf16);
  const Value y = makes_filter_last ? b.conv_fprop(first, second, 1, 1) : b.conv_fprop(second, first, 1, 1);
  graph.set_output("y", b.cast(y, DType::bf16));
  return passes::run_pipeline(std::move(graph), hopper(), {});
}

TEST(OverlappedLaunches, AFilterIsReadBeforeTheWaitWhereItWasCompleteBefore) {
  const auto waits = [](const Graph& graph) {
    const CudaPlan plan = lowered(graph);
    expect_same_bits(graph, plan);
    const auto conv = std::ranges::find_if(plan.calls, [](const KernelCall& call) { return call.early.has_value(); });
    EXPECT_NE(conv, plan.calls.end());
    return codegen::cuda::waits_of(*conv);
  };
  EXPECT_EQ(waits(convolution(/*makes_filter_last=*/false)), codegen::cuda::Waits::after_early_reads);
  EXPECT_EQ(waits(convolution(/*makes_filter_last=*/true)), codegen::cuda::Waits::at_beginning);
}

TEST(OverlappedLaunches, AKernelThatDoesNotWaitIsRefused) {
  EXPECT_THROW(codegen::cuda::with_waits_parameter("extern \"C\" __global__ void $kernel(float* y) {\n}\n"), Error);
}

}  // namespace
}  // namespace difuse::testing
