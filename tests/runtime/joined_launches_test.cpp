// Equal launches as one: how many launches are left, that no bit changes, and what must stay apart.
#include <gtest/gtest.h>

#include <algorithm>

#include "codegen/cuda/join/table.h"
#include "codegen/cuda/lower_cuda.h"
#include "ir/builder.h"
#include "ir/error.h"
#include "passes/pipeline.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/backend/emulated_executor.h"
#include "tests/support/backend/joined_plan.h"
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

/// Members of each launch.
std::vector<int> members(const CudaPlan& plan) {
  std::vector<int> counts;
  for (const KernelCall& call : plan.calls) counts.push_back(call.members);
  return counts;
}

void expect_same_bits(const Graph& graph) {
  const auto apart = lower_emulated(graph);
  EmulatedExecutor together(joined_plan(graph));
  const ir::TensorMap inputs = random_leaves(graph, ir::Op::input, 1), states = random_leaves(graph, ir::Op::state, 2);
  expect_same(run(*apart, inputs, states, 2), run(together, inputs, states, 2), "the joined plan");
}

/// Gradients of three biases, each behind a product that the next one reads.
Graph biases() {
  Graph graph("step");
  Builder b(graph);
  Value x = b.input("x", {DType::f32, {4, 16}});
  std::vector<Value> sums;
  for (int i = 0; i < 3; ++i) {
    const Value w = b.input("w" + std::to_string(i), {DType::f32, {16, 16}});
    x = b.matmul(x, w);
    sums.push_back(b.reduce_sum(x, {0}));
  }
  graph.set_output("y", x);
  graph.set_output("gradient", b.pack(sums, {0, 64, 128}, 192));
  return graph;
}

TEST(JoinedLaunches, WhatOnlyTheEndReadsWaitsForItsKind) {
  const Graph graph = biases();
  const CudaPlan plan = joined_plan(graph);
  // The products follow one another; then come the sums, and the gaps of the packed vector.
  EXPECT_EQ(members(plan), (std::vector{1, 1, 1, 3, 1}));
  EXPECT_EQ(plan.calls[3].grid.z, 3);
  EXPECT_EQ(plan.memory.together, (std::vector<passes::NodeRange>{{7, 9}}));
  expect_same_bits(graph);
}

/// Projections of one matrix to several widths, and what is computed backwards through each of them.
Graph projections(DType dtype, const std::vector<int64_t>& widths) {
  Graph graph("step");
  Builder b(graph);
  const Value x = b.input("x", {dtype, {5, 32}});
  for (size_t i = 0; i < widths.size(); ++i) {
    const std::string n = std::to_string(i);
    const Value w = b.input("w" + n, {dtype, {widths[i], 32}}), dy = b.input("dy" + n, {dtype, {5, widths[i]}});
    const Value y = b.matmul(x, w, false, true);
    graph.set_output("y" + n, b.add(y, b.broadcast(b.input("b" + n, {DType::f32, {widths[i]}}), b.shape(y), {1})));
    graph.set_output("dx" + n, b.matmul(dy, w));
    graph.set_output("dw" + n, b.matmul(dy, x, true));
  }
  return passes::run_pipeline(graph, *ir::find_device_spec("h100"), {});
}

TEST(JoinedLaunches, ProductsOfSeveralWidthsAreOne) {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const Graph graph = projections(dtype, {16, 48, 32, 80});
    // Forward, the rows' gradients and the weights', whose sum over so few rows has no second stage.
    EXPECT_EQ(members(joined_plan(graph)), (std::vector{4, 4, 4}));
    expect_same_bits(graph);
  }
}

TEST(JoinedLaunches, ProductsOfWidthsThatAreCopiedOtherwiseStayApart) {
  const Graph graph = projections(DType::bf16, {16, 18});  // 18 numbers are no whole copies of 16 bytes.
  std::vector<int> counts = members(joined_plan(graph));
  EXPECT_EQ(std::ranges::count(counts, 1), 6);
  expect_same_bits(graph);
}

TEST(JoinedLaunches, WhatIsReadyEarlyComesWithTheFirstOfItsKind) {
  Graph graph("step");
  Builder b(graph);
  Value x = b.input("x", {DType::bf16, {2, 6, 6, 8}});
  for (int i = 0; i < 3; ++i) {
    const Value w = b.input("w" + std::to_string(i), {DType::bf16, {8, 3, 3, 8}});
    x = b.cast(b.conv_fprop(x, b.repack(w, ir::WeightLayout::flipped), 1, 1), DType::bf16);
  }
  graph.set_output("y", x);
  const CudaPlan plan = joined_plan(graph);
  EXPECT_EQ(plan.calls[0].members, 3);
  EXPECT_EQ(std::ranges::count_if(plan.calls, [](const KernelCall& c) { return c.members > 1; }), 1);
  expect_same_bits(graph);
}

// Filter gradients whose kernel is launched in clusters, of which the smaller problem has fewer.
TEST(JoinedLaunches, PairsOfBlocksStayPairs) {
  Graph graph("step");
  Builder b(graph);
  for (const int64_t n : {1, 4}) {
    const std::string name = std::to_string(n);
    const Value x = b.input("x" + name, {DType::bf16, {n, 16, 16, 64}});
    const Value dy = b.input("dy" + name, {DType::bf16, {n, 16, 16, 64}});
    graph.set_output("dw" + name, b.conv_wgrad(x, dy, {1, 0, 1, 1}));
  }
  const CudaPlan plan = joined_plan(graph);
  EXPECT_EQ(members(plan), (std::vector{2, 2}));
  EXPECT_EQ(plan.calls[0].grid.x, 4);
  expect_same_bits(graph);
}

TEST(JoinedLaunches, ANodeThatReadsTheOtherOfItsKindStaysApart) {
  Graph graph("step");
  Builder b(graph);
  Value x = b.input("x", {DType::f32, {4, 16}});
  for (int i = 0; i < 3; ++i) x = b.silu(x);
  graph.set_output("y", x);
  const CudaPlan plan = joined_plan(graph);
  EXPECT_EQ(members(plan), (std::vector{1, 1, 1}));
  EXPECT_TRUE(plan.memory.together.empty());
}

TEST(JoinedLaunches, OtherKernelsStayApart) {
  Graph graph("step");
  Builder b(graph);
  const Value x = b.input("x", {DType::f32, {4, 16}}), y = b.input("y", {DType::f32, {4, 20}});
  graph.set_output("a", b.reduce_max(x, {0}));
  graph.set_output("b", b.reduce_max(y, {0}));
  graph.set_output("c", b.reduce_sum(x, {0}));
  EXPECT_EQ(members(joined_plan(graph)), (std::vector{1, 1, 1}));
}

TEST(JoinedLaunches, SumsOverRowsOfAnyLengthAreOneKernel) {
  Graph graph("step");
  Builder b(graph);
  std::vector<Value> sums;
  std::vector<int64_t> offsets;
  for (const int64_t columns : {16, 20, 257, 64}) {
    const Value x = b.input("x" + std::to_string(columns), {DType::f32, {37, columns}});
    offsets.push_back(static_cast<int64_t>(sums.size()) * 320);
    sums.push_back(b.reduce_sum(x, {0}));
  }
  graph.set_output("gradient", b.pack(sums, offsets, 1280));
  EXPECT_EQ(members(joined_plan(graph)), (std::vector{4, 1}));  // And the gaps.
  expect_same_bits(graph);
  const ir::TensorMap inputs = random_leaves(graph, ir::Op::input, 1);
  expect_near_reference(graph, run(*lower_emulated(graph), inputs, {}), inputs, {}, 1e-5);
}

/// A convolution whose image's channels are scaled by their sums, which its kernel leaves in parts.
Graph scaled_by_sums(int64_t side, bool others_read_first) {
  Graph graph("step");
  Builder b(graph);
  const ir::Shape shape{2, side, side, 64};
  const Value x = b.input("x", {DType::bf16, shape}), w = b.input("w", {DType::bf16, {64, 3, 3, 64}});
  const Value y = b.cast(b.conv_fprop(x, w, /*stride=*/1, /*pad=*/1), DType::bf16);
  const Value sums = b.reduce_sum(b.cast(y, DType::f32), {1, 2});
  Value scaled = b.mul(b.cast(y, DType::f32), b.broadcast_image_channels(sums, shape));
  if (others_read_first) {
    const Value product = b.matmul(sums, b.input("m", {DType::f32, {64, 64}}));
    scaled = b.mul(scaled, b.broadcast_image_channels(product, shape));
  }
  graph.set_output("z", b.cast(scaled, DType::bf16));
  graph.set_output("sums", sums);
  return passes::run_pipeline(graph, hopper(), {});
}

TEST(JoinedLaunches, WhoReadsAnImagesSumsAddsItsParts) {
  const auto plan = [](const Graph& graph) {
    return codegen::cuda::lower_cuda(graph, passes::plan_memory(graph), hopper());
  };
  const Graph taken = scaled_by_sums(16, false), apart = scaled_by_sums(16, true);
  EXPECT_EQ(members(plan(taken)), (std::vector{1, 1}));
  EXPECT_EQ(members(plan(apart)), (std::vector{1, 1, 1, 1})) << "they are there already";
  EXPECT_EQ(members(plan(scaled_by_sums(8, false))), (std::vector{1, 1})) << "one part is the sum";
  const ir::TensorMap inputs = random_leaves(apart, ir::Op::input, 1);
  ir::TensorMap fewer = inputs;
  fewer.erase("m");
  const CpuRun results = run(*lower_emulated(taken), fewer, {}), whole = run(*lower_emulated(apart), inputs, {});
  EXPECT_EQ(results.outputs.at("sums"), whole.outputs.at("sums"));
  expect_near_reference(taken, results, fewer, {}, 4e-3);
}

TEST(JoinedLaunches, TheNextValueOfAStateIsMadeInItsPlace) {
  Graph graph("step");
  Builder b(graph);
  for (const char* name : {"a", "b"}) {
    const Value state = b.state(name, {DType::f32, {64}});
    graph.set_update(name, b.silu(state));
  }
  const CudaPlan plan = joined_plan(graph);
  EXPECT_EQ(members(plan), (std::vector{1, 1}));
  EXPECT_TRUE(plan.memory.state_copies.empty());
}

TEST(JoinedLaunches, BigTensorsAreNotKeptAlive) {
  Graph graph("step");
  Builder b(graph);
  Value x = b.input("x", {DType::f32, {512, 512}});
  std::vector<Value> sums;
  for (int i = 0; i < 8; ++i) {
    x = b.matmul(x, x);
    sums.push_back(b.reduce_sum(x, {0}));
  }
  graph.set_output("gradient", b.pack(sums, {0, 512, 1024, 1536, 2048, 2560, 3072, 3584}, 4096));
  const int64_t before = passes::plan_memory(graph).arena_bytes;
  const CudaPlan plan = joined_plan(graph);
  EXPECT_LE(plan.memory.arena_bytes, before + before / 32 + (1 << 18));
  EXPECT_TRUE(plan.memory.together.empty());
}

/// Sums over images so large that each leaves parts, which a second launch adds up.
TEST(JoinedLaunches, SecondStagesWaitForTheirKind) {
  Graph graph("step");
  Builder b(graph);
  Value x = b.input("x", {DType::f32, {16, 32, 32, 8}});
  std::vector<Value> sums;
  for (int i = 0; i < 3; ++i) {
    x = b.silu(x);
    sums.push_back(b.reduce_sum(x, {0, 1, 2}));
  }
  graph.set_output("y", x);
  graph.set_output("gradient", b.pack(sums, {0, 64, 128}, 192));
  const CudaPlan apart = codegen::cuda::lower_cuda(graph, passes::plan_memory(graph), hopper());
  // Each silu and the sum's first stage, the second stages as one, the gaps.
  EXPECT_EQ(members(apart), (std::vector{1, 1, 1, 1, 1, 1, 3, 1}));
  const KernelCall& last = apart.calls[6];
  std::vector<int64_t> from;
  for (const auto& argument : last.arguments) {
    if (argument.kind == codegen::cuda::Argument::Kind::workspace) from.push_back(argument.value);
  }
  std::ranges::sort(from);
  EXPECT_EQ(std::ranges::unique(from).size(), 0u) << "the parts lie over each other";
  const ir::TensorMap inputs = random_leaves(graph, ir::Op::input, 1);
  expect_near_reference(graph, run(*lower_emulated(graph), inputs, {}), inputs, {}, 1e-5);
}

TEST(JoinedLaunches, SecondStagesOfAnyExtentsAreOne) {
  Graph graph("step");
  Builder b(graph);
  int count = 0;
  // Of an image and of all images, of few parts and of many.
  for (const ir::Shape& shape : {ir::Shape{4, 64, 64, 8}, ir::Shape{16, 64, 32, 24}}) {
    const Value x = b.input("x" + std::to_string(count), {DType::f32, shape});
    for (const std::vector<int64_t>& axes : std::vector<std::vector<int64_t>>{{1, 2}, {0, 1, 2}})
      graph.set_output("sum" + std::to_string(count++), b.reduce_sum(x, axes));
  }
  const CudaPlan plan = codegen::cuda::lower_cuda(graph, passes::plan_memory(graph), hopper());
  EXPECT_EQ(members(plan), (std::vector{1, 1, 1, 1, 4}));
  const ir::TensorMap inputs = random_leaves(graph, ir::Op::input, 1);
  expect_near_reference(graph, run(*lower_emulated(graph), inputs, {}), inputs, {}, 1e-5);
}

// One that eight threads share and one that each thread adds alone.
TEST(JoinedLaunches, SumsOfFiltersGradientsAreOneHoweverManyThreadsShareThem) {
  Graph graph("step");
  Builder b(graph);
  for (const int64_t outputs : {64, 512}) {
    const std::string name = std::to_string(outputs);
    const Value x = b.input("x" + name, {DType::bf16, {8, 16, 16, 64}});
    const Value dy = b.input("dy" + name, {DType::bf16, {8, 16, 16, outputs}});
    graph.set_output("dw" + name, b.conv_wgrad(x, dy, {1, 0, 1, 1}));
  }
  const CudaPlan plan = codegen::cuda::lower_cuda(graph, passes::plan_memory(graph), hopper());
  EXPECT_EQ(members(plan), (std::vector{1, 1, 2}));
  const ir::TensorMap inputs = random_leaves(graph, ir::Op::input, 1);
  expect_near_reference(graph, run(*lower_emulated(graph), inputs, {}), inputs, {}, 1e-5);
}

/// Inputs, which no vector is made of in place, each with a gap behind it.
Graph packed_inputs(const std::vector<int64_t>& sizes) {
  Graph graph("step");
  Builder b(graph);
  std::vector<Value> parts;
  std::vector<int64_t> offsets;
  int64_t end = 0;
  for (const int64_t size : sizes) {
    parts.push_back(b.input("x" + std::to_string(parts.size()), {DType::f32, {size}}));
    offsets.push_back(end);
    end += size + 1;
  }
  graph.set_output("packed", b.pack(parts, offsets, end));
  return graph;
}

TEST(JoinedLaunches, WhatAPackedVectorLacksIsOneLaunch) {
  const std::vector<int64_t> many(200, 3);  // More than one kernel has pointers for.
  for (const auto& [sizes, launches] : {std::pair(std::vector<int64_t>{70000, 1, 257}, 1), std::pair(many, 2)}) {
    const Graph graph = packed_inputs(sizes);
    const CudaPlan plan = codegen::cuda::lower_cuda(graph, passes::plan_memory(graph), hopper());
    EXPECT_EQ(plan.calls.size(), launches);
    const ir::TensorMap inputs = random_leaves(graph, ir::Op::input, 1);
    expect_near_reference(graph, run(*lower_emulated(graph), inputs, {}), inputs, {}, 0);
  }
}

TEST(JoinedLaunches, ASecondStageRunsBeforeItsResultIsRead) {
  Graph graph("step");
  Builder b(graph);
  const ir::Shape shape{16, 32, 32, 8};
  Value x = b.input("x", {DType::f32, shape});
  for (int i = 0; i < 2; ++i) {
    const Value sum = b.reduce_sum(x, {0, 1, 2});
    x = b.mul(x, b.broadcast_channels(b.reshape(b.tanh(b.reshape(sum, {1, 8})), {8}), shape));
  }
  graph.set_output("y", x);
  const CudaPlan plan = codegen::cuda::lower_cuda(graph, passes::plan_memory(graph), hopper());
  for (const KernelCall& call : plan.calls) EXPECT_EQ(call.members, 1);
  const ir::TensorMap inputs = random_leaves(graph, ir::Op::input, 1);
  expect_near_reference(graph, run(*lower_emulated(graph), inputs, {}), inputs, {}, 1e-5);
}

TEST(JoinedLaunches, MoreMembersThanATableHolds) {
  Graph graph("step");
  Builder b(graph);
  std::vector<Value> sums;
  std::vector<int64_t> offsets;
  const Value x = b.input("x", {DType::f32, {140 * 64}});
  for (int i = 0; i < 140; ++i) {
    sums.push_back(b.silu(b.view(x, 64 * i, {16})));
    offsets.push_back(64 * i);
  }
  graph.set_output("gradient", b.pack(sums, offsets, 64 * 140));
  const CudaPlan plan = joined_plan(graph);
  int64_t most = 0, all = 0;
  for (const KernelCall& call : plan.calls) {
    EXPECT_LE(call.table_bytes, codegen::cuda::kMostTableBytes);
    most = std::max<int64_t>(most, call.members);
    if (call.members > 1) all += call.members;
  }
  EXPECT_EQ(most, 102);
  EXPECT_EQ(all, 140);
  expect_same_bits(graph);
}

/// A residual block with its gradients, as the pipeline leaves it.
TEST(JoinedLaunches, ABlockKeepsItsBits) {
  const Graph graph = passes::run_pipeline(tests::norm_block(2, 8, 8, 8, 2), hopper(), {});
  expect_same_bits(graph);
}

/// A sum in two stages of what its convolution has made, read before anybody reads that.
TEST(JoinedLaunches, AFirstStageDoesNotWait) {
  Graph graph("sums");
  Builder b(graph);
  const Value x = b.input("x", {DType::f32, {2, 8, 8, 64}}), w = b.input("w", {DType::f32, {64, 3, 3, 64}});
  const Value y = b.conv_fprop(x, w, /*stride=*/1, /*pad=*/1), sums = b.reduce_sum(y, {0, 1, 2});
  graph.set_output("twice", b.add(sums, sums));
  graph.set_output("y", y);
  const Graph fused = passes::run_pipeline(graph, hopper(), {});
  EmulatedExecutor together(joined_plan(fused));
  const ir::TensorMap inputs = random_leaves(fused, ir::Op::input, 1);
  expect_near_reference(fused, run(together, inputs, {}, 1), inputs, {}, 1e-5);
}

/// Gradients of equal filters, whose operands are there from the beginning.
Graph filter_gradients(const ir::Shape& image, const std::vector<int64_t>& outputs) {
  Graph graph("step");
  Builder b(graph);
  std::vector<Value> gradients;
  std::vector<int64_t> offsets;
  int64_t size = 0;
  for (const int64_t channels : outputs) {
    const std::string number = std::to_string(gradients.size());
    const Value x = b.input("x" + number, {DType::bf16, image});
    ir::Shape shape = image;
    shape.back() = channels;
    gradients.push_back(b.conv_wgrad(x, b.input("dy" + number, {DType::bf16, shape}), {1, 1, 3, 3}));
    offsets.push_back(size);
    size += graph.type(gradients.back()).elements();
  }
  graph.set_output("gradient", b.pack(gradients, offsets, size));
  return graph;
}

TEST(JoinedLaunches, TensorMapsAreInTheTable) {
  const Graph graph = filter_gradients({3, 8, 8, 64}, {64, 64, 64});
  const CudaPlan plan = joined_plan(graph);
  EXPECT_EQ(members(plan), (std::vector{3}));
  const KernelCall& call = plan.calls[0];
  EXPECT_EQ(call.tensor_maps.size(), 6);
  std::vector<int64_t> maps;
  for (const auto& argument : call.arguments) {
    if (argument.kind == codegen::cuda::Argument::Kind::tensor_map) maps.push_back(argument.value);
  }
  EXPECT_EQ(maps, (std::vector<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(codegen::cuda::row_bytes(call) % 64, 0);
  EXPECT_LE(call.table_bytes, codegen::cuda::kMostTableBytes);
  expect_same_bits(graph);
}

/// Two kernels each: the products have kernels of their own, but their sums are added by one.
TEST(JoinedLaunches, SumsOfDifferentFiltersAreOneLaunch) {
  const Graph graph = filter_gradients({1, 16, 16, 64}, {64, 72, 128});
  const CudaPlan plan = codegen::cuda::lower_cuda(graph, passes::plan_memory(graph), hopper());
  EXPECT_EQ(members(plan), (std::vector{1, 1, 1, 3}));
  const ir::TensorMap inputs = random_leaves(graph, ir::Op::input, 1);
  expect_near_reference(graph, run(*lower_emulated(graph), inputs, {}), inputs, {}, 1e-5);
}

std::vector<std::string> source_names(const CudaPlan& plan) {
  std::vector<std::string> names;
  for (const auto& source : plan.sources) names.push_back(source.name);
  std::ranges::sort(names);
  return names;
}

/// Of one image the first stage leaves nothing to add.
TEST(JoinedLaunches, ASecondStageOfALargerBatchIsCompiledWithTheFirst) {
  const auto sum = [](int64_t batch) {
    Graph graph("sum");
    Builder b(graph);
    graph.set_output("y", b.reduce_sum(b.input("x", {DType::f32, {batch, 8, 8, 16}}), {0, 1, 2}));
    return codegen::cuda::lower_cuda(graph, passes::plan_memory(graph), hopper());
  };
  EXPECT_EQ(sum(1).calls.size() + 1, sum(64).calls.size());
  EXPECT_EQ(source_names(sum(1)), source_names(sum(64)));
  const auto conv = [](int64_t batch) {
    Graph graph("sum");
    Builder b(graph);
    const Value x = b.input("x", {DType::bf16, {batch, 8, 8, 64}}), w = b.input("w", {DType::bf16, {64, 3, 3, 64}});
    const Value y = b.cast(b.conv_fprop(x, w, /*stride=*/1, /*pad=*/1), DType::bf16);
    graph.set_output("y", y);
    graph.set_output("sum", b.reduce_sum(b.cast(y, DType::f32), {0, 1, 2}));
    const Graph fused = passes::run_pipeline(graph, hopper(), {});
    return codegen::cuda::lower_cuda(fused, passes::plan_memory(fused), hopper());
  };
  EXPECT_EQ(conv(1).calls.size() + 1, conv(4).calls.size());
  EXPECT_EQ(source_names(conv(1)), source_names(conv(4)));
}

/// One after the other each has all processors, and as many partial sums.
TEST(JoinedLaunches, FilterGradientsShareTheProcessors) {
  const Graph graph = filter_gradients({32, 64, 64, 64}, {64, 64, 64});
  const CudaPlan plan = joined_plan(graph);
  const CudaPlan apart = codegen::cuda::lower_cuda(graph, passes::plan_memory(graph), hopper());
  EXPECT_EQ(members(plan), (std::vector{3, 3}));
  EXPECT_LE(plan.calls[0].grid.x * 3, apart.calls[0].grid.x);
  EXPECT_LE(plan.workspace_bytes * 2, apart.workspace_bytes);
}

/// The first of two could wait for the other, but its operands would be alive at the peak, which lies between them.
TEST(JoinedLaunches, NothingIsPutOffPastThePeak) {
  Graph graph("step");
  Builder b(graph);
  const ir::Type image = {DType::f32, {64, 16, 16, 64}};
  const auto rounded = [&](const std::string& name) { return b.cast(b.input(name, image), DType::bf16); };
  const auto gradient = [&](const std::string& name) {
    return b.conv_wgrad(rounded("x" + name), rounded("dy" + name), {1, 1, 3, 3});
  };
  const Value first = gradient("a");
  std::vector<Value> alive;
  for (int i = 0; i < 4; ++i) alive.push_back(b.silu(b.input("u" + std::to_string(i), image)));
  Value all = alive[0];
  for (size_t i = 1; i < alive.size(); ++i) all = b.mul(all, alive[i]);
  graph.set_output("all", all);
  graph.set_output("dw", b.add(first, gradient("b")));
  const CudaPlan apart = codegen::cuda::lower_cuda(graph, passes::plan_memory(graph), hopper());
  EXPECT_LE(joined_plan(graph).memory.arena_bytes, apart.memory.arena_bytes * 33 / 32);
}

TEST(JoinedLaunches, AStateIsReadBeforeItsNextValueIsMade) {
  Graph graph("step");
  Builder b(graph);
  const Value state = b.state("s", {DType::f32, {4, 16}}), x = b.input("x", {DType::f32, {4, 16}});
  // Equal sums, which nobody needs before the end; one of them reads the old value.
  const Value a = b.reduce_sum(state, {0}), c = b.reduce_sum(x, {0});
  graph.set_update("s", b.matmul(x, b.input("w", {DType::f32, {16, 16}})));
  graph.set_output("sums", b.pack({a, c}, {0, 64}, 128));
  const CudaPlan plan = joined_plan(graph);
  EXPECT_EQ(members(plan), (std::vector{2, 1, 1}));
  EXPECT_TRUE(plan.memory.state_copies.empty());
  expect_same_bits(graph);
}

TEST(JoinedLaunches, AReshapedNextValueIsMadeInItsPlaceToo) {
  Graph graph("step");
  Builder b(graph);
  const Value w = b.input("w", {DType::f32, {16, 16}});
  for (const std::string name : {"a", "b"}) {
    b.state(name, {DType::f32, {64}});
    graph.set_update(name, b.reshape(b.matmul(b.input("x" + name, {DType::f32, {4, 16}}), w), {64}));
  }
  const CudaPlan plan = joined_plan(graph);
  EXPECT_EQ(members(plan), (std::vector{1, 1}));
  EXPECT_TRUE(plan.memory.state_copies.empty());
  expect_same_bits(graph);
}

TEST(JoinedLaunches, TheJoinedKernelIsTheSingleOneForEachRow) {
  const codegen::CudaSource single{"twice_12345678",
                                   "struct Before {};\nextern \"C\" __global__ void __launch_bounds__(64, 1) "
                                   "twice_12345678(const f32* p0, f32* y0, long long count) {\n  f();\n}\n",
                                   "sm_90a",
                                   {"--option"}};
  const codegen::CudaSource joined = codegen::cuda::joined_source(single);
  EXPECT_EQ(joined.name.substr(0, 13), "twice_joined_");
  EXPECT_EQ(joined.options, single.options);
  EXPECT_EQ(joined.source,
            "struct Before {};\n"
            "struct JoinedMember {\n"
            "  const f32* p0;\n"
            "  f32* y0;\n"
            "  long long count;\n"
            "  long long grid_blocks;\n"
            "};\n"
            "struct JoinedTable {\n"
            "  JoinedMember members[128];\n"
            "};\n\n"
            "extern \"C\" __global__ void __launch_bounds__(64, 1) " +
                joined.name +
                "(const __grid_constant__ JoinedTable joined) {\n"
                "  if (blockIdx.x >= joined.members[blockIdx.z].grid_blocks) return;\n"
                "  [[maybe_unused]] const f32* p0 = joined.members[blockIdx.z].p0;\n"
                "  [[maybe_unused]] f32* y0 = joined.members[blockIdx.z].y0;\n"
                "  [[maybe_unused]] long long count = joined.members[blockIdx.z].count;\n"
                "  f();\n}\n");
  EXPECT_THROW(codegen::cuda::joined_source({"other", single.source, "sm_90a", {}}), Error);
}

}  // namespace
}  // namespace difuse::testing
