#include "runtime/executor.h"

#include <gtest/gtest.h>

#include "ir/builder.h"
#include "ir/error.h"
#include "passes/autodiff.h"
#include "runtime/compile.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/op_rows.h"
#include "tests/support/temp_folder.h"

namespace difuse {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Shape;
using ir::Type;
using ir::Value;

Type f32_of(Shape shape) { return {DType::f32, std::move(shape)}; }

/// A small network trained by plain descent: packed parameters, a strided and a 1x1 convolution, a norm, a linear, a
/// gather, and every parameter updated in place.
Graph training_graph(int64_t n) {
  Graph graph("training");
  Builder b(graph);
  constexpr int64_t kSize = 8192;
  const Value flat = b.state("params", f32_of({kSize})), step = b.state("step", {DType::i32, {}});
  const Value seed = b.state("seed", {DType::u32, {2}});
  const Value index = b.input("index", {DType::i32, {n}}), label = b.input("label", {DType::i32, {n}});
  int64_t offset = 0;
  std::vector<Value> parameters;
  std::vector<int64_t> offsets;
  auto parameter = [&](const Shape& shape) {
    const Value v = b.view(flat, offset, shape);
    parameters.push_back(v);
    offsets.push_back(offset);
    offset += (ir::element_count(shape) + 63) / 64 * 64;
    return v;
  };
  const Value table = parameter({4, 16}), first = parameter({12, 3, 3, 2}), gamma = parameter({12});
  const Value second = parameter({16, 3, 3, 12}), pointwise = parameter({8, 1, 1, 16}), linear = parameter({8, 16});

  const Value noise = b.random_normal(seed, index, step, 1, {8, 8, 2});
  const Value pixels = b.sub(b.mul(b.cast(b.input("pixels", {DType::u8, {n, 8, 8, 2}}), DType::f32), 2.0 / 255), 1.0);
  Value x = b.conv_fprop(b.add(pixels, noise), first, 1, 1);
  const Shape s = b.shape(x);
  const auto stats = b.group_finish({b.channel_moments(x)}, {3, 1e-5, 8, 8});
  const Value scale = b.mul(stats.rstd, b.broadcast_channels(gamma, {n, 12}));
  x = b.silu(b.mul(b.sub(x, b.broadcast_image_channels(stats.mean, s)), b.broadcast_image_channels(scale, s)));
  x = b.conv_fprop(x, second, 2, 1);
  x = b.add(x, b.broadcast_image_channels(b.silu(b.gather(table, label)), b.shape(x)));
  x = b.conv_fprop(x, pointwise, 1, 0);
  const Value rows = b.matmul(b.gather(table, label), linear, false, true);
  x = b.add(x, b.broadcast_image_channels(rows, b.shape(x)));
  const Value loss = b.mean_all(b.square(x));

  const std::vector<Value> gradients = passes::differentiate(b, loss, parameters);
  const Value gradient = b.pack(gradients, offsets, kSize);
  graph.set_output("loss", loss);
  graph.set_output("gradient", gradient);
  graph.set_output("norm", b.sqrt(b.sum_all(b.square(gradient))));
  graph.set_update("params", b.sub(flat, b.mul(gradient, 0.05)));
  graph.set_update("step", b.add(step, 1.0));
  return graph;
}

ir::TensorMap training_states(const Graph& graph) {
  ir::TensorMap states = testing::random_leaves(graph, ir::Op::state, 7, {{"step", testing::Fill::index}});
  for (double& x : states["params"].data) x = static_cast<double>(static_cast<float>(0.2 * x));
  return states;
}
ir::TensorMap training_inputs(const Graph& graph) {
  return testing::random_leaves(graph, ir::Op::input, 8, {{"label", testing::Fill::index}});
}

TEST(Executor, TrainsLikeTheReferenceFusedAndUnfused) {
  const Graph graph = training_graph(11);
  const ir::TensorMap inputs = training_inputs(graph), states = training_states(graph);
  std::vector<testing::CpuRun> runs;
  for (const bool fuse : {true, false}) {
    for (const int threads : {1, 2}) {
      for (const bool reuse : {true, false}) {
        const auto executor = runtime::compile(graph, {}, threads, {.fuse = fuse, .reuse_memory = reuse});
        runs.push_back(testing::run(*executor, inputs, states));
        testing::expect_near_reference(graph, runs.back(), inputs, states, 2e-5);
        if (runs.size() % 4 != 1) {
          testing::expect_same(runs.back(), runs[(runs.size() - 1) / 4 * 4], "other threads or memory");
        }
      }
    }
  }
}

TEST(Executor, StepsFollowOneAnother) {
  const Graph graph = training_graph(3);
  const ir::TensorMap inputs = training_inputs(graph);
  ir::TensorMap states = training_states(graph);
  const auto executor = runtime::compile(graph, {}, 2);
  const testing::CpuRun five = testing::run(*executor, inputs, states, 5);
  // Continued in another executor after two steps, the bits are the same.
  const testing::CpuRun two = testing::run(*executor, inputs, states, 2);
  ir::TensorMap after;
  for (const auto& [name, bytes] : two.states) after[name] = testing::decode(states.at(name).type, bytes);
  testing::expect_same(five, testing::run(*runtime::compile(graph, {}, 1), inputs, after, 3), "in two parts");
}

TEST(Executor, NamesWhatItDoesNotKnow) {
  Graph graph("g");
  Builder b(graph);
  graph.set_output("y", b.neg(b.input("x", f32_of({3}))));
  b.state("s", f32_of({2}));
  const auto executor = testing::lower(graph);
  std::vector<std::byte> bytes(8);
  auto message = [](auto&& call) -> std::string {
    try {
      call();
    } catch (const Error& e) {
      return e.what();
    }
    return "nothing thrown";
  };
  EXPECT_EQ(message([&] { executor->write_input("x", bytes); }), "input \"x\" is f32[3], 12 bytes, not 8");
  EXPECT_EQ(message([&] { executor->write_input("z", bytes); }), "graph \"g\" has no input \"z\"");
  EXPECT_EQ(message([&] { executor->read_output("y", bytes); }), "output \"y\" is f32[3], 12 bytes, not 8");
  EXPECT_EQ(message([&] { executor->read_output("q", bytes); }), "graph \"g\" has no output \"q\"");
  EXPECT_EQ(message([&] { executor->read_state("t", bytes); }), "graph \"g\" has no state \"t\"");
  bytes.resize(4);
  EXPECT_EQ(message([&] { executor->write_state("s", bytes); }), "state \"s\" is f32[2], 8 bytes, not 4");
}

TEST(Executor, RefusesNoThreads) {
  Graph graph("g");
  Builder b(graph);
  graph.set_output("y", b.neg(b.input("x", f32_of({3}))));
  EXPECT_THROW(testing::lower(graph, {.threads = 0}), Error);
}

TEST(Executor, WhatTheMachineHasNoMemoryForIsRefusedBeforeItIsTaken) {
  Graph graph("large");
  Builder b(graph);
  graph.set_output("y", b.neg(b.input("x", f32_of({1 << 15, 1 << 15, 1 << 15}))));
  try {
    testing::lower(graph, {.threads = 1});
    FAIL() << "not refused";
  } catch (const Error& e) {
    EXPECT_CONTAINS(e.what(), "the graph \"large\" needs 281475.0 GB of memory, and this machine has ");
    EXPECT_EQ(e.remedy(), "use a smaller batch, image size or model");
  }
}

TEST(Executor, AnIndexOutOfRangeIsAnError) {
  for (const double bad : {-1.0, 4.0, 2147483647.0}) {
    Graph graph("g");
    Builder b(graph);
    const Value index = b.input("i", {DType::i32, {6}});
    graph.set_output("y", b.gather(b.input("x", f32_of({4, 500})), index));
    graph.set_output("z", b.scatter_add(index, b.input("rows", f32_of({6, 3})), 4));
    ir::TensorMap inputs = testing::random_leaves(graph, ir::Op::input, 1, {{"i", testing::Fill::index}});
    inputs["i"].data[4] = bad;
    const auto executor = testing::lower(graph);
    try {
      testing::run(*executor, inputs, {});
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("gather: index"), std::string::npos) << e.what();
    }
    inputs["i"].data[4] = 3;
    testing::expect_near_reference(graph, testing::run(*executor, inputs, {}), inputs, {}, 1e-6);
  }
}

// Gaps of a packed vector are zero on every step, whatever else used the memory; parts made in place are not copied.
TEST(Executor, PackedGapsAreZero) {
  Graph graph("g");
  Builder b(graph);
  const Value x = b.input("x", f32_of({3, 4})), y = b.input("y", f32_of({40000}));
  const Value big = b.exp(b.mul(y, 0.1));
  const Value packed = b.pack({b.exp(x), x, b.neg(b.exp(x))}, {64, 128, 192}, 40000);
  graph.set_output("y", b.add(packed, b.broadcast_scalar(b.sum_all(big), {40000})));
  const ir::TensorMap inputs = testing::random_leaves(graph, ir::Op::input, 1);
  const auto executor = testing::lower(graph);
  for (int step = 0; step < 2; ++step) {
    testing::expect_near_reference(graph, testing::run(*executor, inputs, {}), inputs, {}, 1e-5);
  }
}

TEST(Executor, StatesThatTakeAnothersValue) {
  Graph graph("g");
  Builder b(graph);
  const Value x = b.state("a", f32_of({5})), y = b.state("b", f32_of({5}));
  graph.set_update("a", b.add(x, y));
  graph.set_update("b", x);
  b.state("kept", f32_of({2}));
  const ir::TensorMap states = testing::random_leaves(graph, ir::Op::state, 1);
  testing::expect_near_reference(graph, testing::run_cpu(graph, {}, states), {}, states, 1e-6);
}

TEST(Executor, ProfilesEachKernel) {
  const Graph graph = training_graph(2);
  const auto executor = runtime::compile(graph, {}, 2);
  executor->enable_profile(true);
  testing::run(*executor, training_inputs(graph), training_states(graph), 3);
  const auto rows = executor->profile();
  ASSERT_FALSE(rows.empty());
  int64_t flops = 0;
  for (const auto& row : rows) {
    EXPECT_EQ(row.calls, 3);
    EXPECT_GT(row.median, 0);
    EXPECT_GE(row.seconds, row.median);
    EXPECT_GT(row.bytes, 0);
    flops += row.flops;
  }
  EXPECT_GT(flops, 0);
}

TEST(Executor, OutputsThatAreLeavesOrLieInOthers) {
  Graph graph("g");
  Builder b(graph);
  const Value x = b.input("x", f32_of({4, 6}));
  const Value y = b.exp(x);
  graph.set_output("x", x);
  graph.set_output("shaped", b.reshape(y, {24}));
  graph.set_output("part", b.view(b.reshape(y, {24}), 6, {2, 3}));
  graph.set_output("constant", b.constant(1.5, {DType::f16, {3}}));
  graph.set_output("table", b.literal({1, 2, 3}, {DType::i32, {3}}));
  const ir::TensorMap inputs = testing::random_leaves(graph, ir::Op::input, 1);
  testing::expect_near_reference(graph, testing::run_cpu(graph, inputs), inputs, {}, 1e-6);
}

}  // namespace
}  // namespace difuse
