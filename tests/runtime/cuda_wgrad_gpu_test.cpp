// Gradients of filters on a GPU, through every pass: batches and images that fill no tile, channels that fill no chunk.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ir/builder.h"
#include "runtime/compile.h"
#include "tests/support/backend/gpu.h"

namespace difuse {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Value;

struct WgradShapes {
  int64_t n, h, w, c, k, taps, pad, stride = 1;
};

/// The gradient, and what weight decay makes of it.
Graph gradient(const WgradShapes& s) {
  Graph graph(fmt::format("wgrad_{}x{}_n{}h{}w{}c{}k{}s{}", s.taps, s.taps, s.n, s.h, s.w, s.c, s.k, s.stride));
  Builder b(graph);
  const auto result = [&](int64_t extent) { return (extent + 2 * s.pad - s.taps) / s.stride + 1; };
  const Value x = b.input("x", {DType::f32, {s.n, s.h, s.w, s.c}});
  const Value dy = b.input("dy", {DType::f32, {s.n, result(s.h), result(s.w), s.k}});
  const Value dw = b.conv_wgrad(x, dy, {s.stride, s.pad, s.taps, s.taps});
  graph.set_output("dw", b.add(dw, b.input("w", graph.type(dw))));
  return graph;
}

TEST(GpuWgrad, ShapesThatFillNoTileMatchTheReference) {
  DIFUSE_NEED_GPU(gpu);
  constexpr WgradShapes kShapes[] = {
      {1, 32, 8, 64, 64, 3, 1},    {3, 64, 64, 64, 64, 3, 1}, {2, 64, 64, 192, 64, 3, 1}, {2, 32, 32, 320, 128, 3, 1},
      {5, 16, 16, 192, 192, 3, 1}, {7, 8, 8, 256, 256, 3, 1}, {3, 8, 8, 768, 768, 3, 1},  {13, 14, 14, 96, 64, 3, 1},
      {5, 7, 7, 72, 200, 3, 1},    {9, 28, 28, 56, 64, 3, 1}, {7, 9, 5, 136, 64, 3, 1},   {3, 12, 20, 64, 128, 3, 0},
      {3, 18, 22, 64, 120, 3, 2},  {3, 7, 9, 200, 64, 1, 0},  {2, 64, 64, 192, 64, 1, 0}, {3, 16, 16, 1024, 64, 1, 0},
      {32, 8, 8, 256, 768, 1, 0},  {1, 1, 1, 64, 64, 1, 0},   {1, 3, 3, 64, 64, 3, 1},    {2, 48, 80, 36, 100, 3, 1},
      {128, 4, 4, 256, 256, 3, 1}, {3, 4, 4, 96, 256, 3, 1},  {131, 4, 4, 36, 96, 3, 1},  {21, 2, 2, 136, 64, 3, 1},
      {3, 45, 3, 64, 96, 3, 1},    {5, 6, 5, 72, 64, 3, 0},
  };
  std::vector<Graph> graphs;
  for (const WgradShapes& shapes : kShapes) graphs.push_back(gradient(shapes));
  for (const passes::Precision precision : {passes::Precision::tf32, passes::Precision::bf16}) {
    testing::expect_nodes_agree(gpu, graphs, precision);
  }
}

TEST(GpuWgrad, StridesMatchTheReference) {
  DIFUSE_NEED_GPU(gpu);
  constexpr WgradShapes kShapes[] = {
      {128, 16, 16, 256, 256, 3, 1, 2}, {5, 32, 32, 128, 128, 3, 1, 2}, {9, 8, 8, 256, 64, 3, 1, 2},
      {3, 33, 27, 72, 136, 3, 1, 2},    {3, 20, 13, 136, 72, 3, 0, 2},  {33, 7, 7, 96, 128, 3, 1, 2},
  };
  std::vector<Graph> graphs;
  for (const WgradShapes& shapes : kShapes) graphs.push_back(gradient(shapes));
  for (const passes::Precision precision : {passes::Precision::tf32, passes::Precision::bf16}) {
    testing::expect_nodes_agree(gpu, graphs, precision);
  }
}

/// Several of a kind in one launch, which share the processors.
TEST(GpuWgrad, ThoseThatRunAtOnceMatchTheReference) {
  DIFUSE_NEED_GPU(gpu);
  for (const passes::Precision precision : {passes::Precision::tf32, passes::Precision::bf16}) {
    const DType dtype = precision == passes::Precision::bf16 ? DType::bf16 : DType::f32;
    std::vector<Graph> graphs;
    for (const WgradShapes& s : {WgradShapes{4, 64, 64, 64, 64, 3, 1}, WgradShapes{6, 16, 16, 192, 192, 3, 1},
                                 WgradShapes{17, 16, 16, 192, 576, 1, 0}, WgradShapes{4, 32, 32, 128, 128, 3, 1},
                                 WgradShapes{33, 4, 4, 256, 256, 3, 1}, WgradShapes{17, 8, 8, 192, 192, 3, 1}}) {
      Graph& graph = graphs.emplace_back(fmt::format("wgrads_{}x{}_h{}c{}k{}", s.taps, s.taps, s.h, s.c, s.k));
      Builder b(graph);
      for (const std::string name : {"a", "b", "c"}) {
        const Value x = b.input("x" + name, {dtype, {s.n, s.h, s.w, s.c}});
        const Value dy = b.input("dy" + name, {dtype, {s.n, s.h, s.w, s.k}});
        graph.set_output("dw" + name, b.conv_wgrad(x, dy, {1, s.pad, s.taps, s.taps}));
      }
      runtime::CompileSettings settings;
      settings.precision = precision;
      const codegen::cuda::CudaPlan plan = runtime::plan_cuda(graph, {}, gpu.spec(), settings);
      const auto members = [](const codegen::cuda::KernelCall& call) { return call.flops > 0 ? call.members : 0; };
      if (gpu.spec().architecture == 90) {
        EXPECT_EQ(members(std::ranges::max(plan.calls, {}, members)), 3) << graph.name();
      }
    }
    testing::expect_nodes_agree(gpu, graphs, precision);
  }
}

/// Filters' gradients whose images are normalised, of one image or of two, whose first has `first` channels.
Graph normalised_gradients(const WgradShapes& s, int count, int64_t first) {
  Graph graph(fmt::format("normalised_{}x{}_n{}h{}w{}c{}k{}", s.taps, s.taps, s.n, s.h, s.w, s.c, s.k));
  Builder b(graph);
  const ir::Shape shape = {s.n, s.h, s.w, s.c}, rows = {s.n, s.c};
  const int64_t border = 2 * s.pad - s.taps + 1;
  for (int i = 0; i < count; ++i) {
    const auto input = [&](const char* name, DType dtype, const ir::Shape& of) {
      return b.input(name + std::to_string(i), {dtype, of});
    };
    Value x = input("x", DType::bf16, {s.n, s.h, s.w, first > 0 ? first : s.c});
    if (first > 0) x = b.concat({x, input("more", DType::bf16, {s.n, s.h, s.w, s.c - first})}, 3);
    x = b.sub(b.cast(x, DType::f32), b.broadcast_image_channels(input("mean", DType::f32, rows), shape));
    x = b.mul(x, b.broadcast_image_channels(input("rstd", DType::f32, rows), shape));
    x = b.mul(x, b.broadcast_channels(input("gamma", DType::f32, {s.c}), shape));
    x = b.silu(b.add(x, b.broadcast_channels(input("beta", DType::f32, {s.c}), shape)));
    const Value dy = input("dy", DType::bf16, {s.n, s.h + border, s.w + border, s.k});
    graph.set_output("dw" + std::to_string(i), b.conv_wgrad(b.cast(x, DType::bf16), dy, {1, s.pad, s.taps, s.taps}));
  }
  return graph;
}

// In shared memory a prologue computes what its own kernel does, the border stays zero, and products are added in the
// same order.
TEST(GpuWgrad, APrologueChangesNoBit) {
  DIFUSE_NEED_GPU(gpu);
  if (gpu.spec().architecture != 90) GTEST_SKIP() << "only Hopper's gradients have prologues";
  struct Row {
    WgradShapes shapes;
    int count = 1;  ///< In one launch.
    int64_t first = 0;
  };
  constexpr Row kRows[] = {
      {{32, 64, 64, 64, 64, 3, 1}},   {{32, 32, 32, 128, 128, 3, 1}},  {{3, 64, 64, 192, 64, 3, 1}, 1, 128},
      {{5, 16, 16, 192, 192, 3, 1}},  {{32, 8, 8, 256, 256, 3, 1}, 2}, {{33, 8, 8, 256, 256, 3, 1}},
      {{13, 14, 14, 96, 64, 3, 1}},   {{5, 7, 7, 72, 200, 3, 1}},      {{9, 28, 28, 40, 64, 3, 1}},
      {{7, 9, 5, 136, 64, 3, 1}},     {{3, 12, 20, 64, 128, 3, 0}},    {{3, 18, 22, 64, 120, 3, 2}},
      {{3, 7, 9, 200, 64, 1, 0}},     {{33, 7, 7, 320, 64, 1, 0}},     {{32, 16, 16, 192, 576, 1, 0}, 3},
      {{32, 16, 16, 192, 192, 1, 0}}, {{32, 8, 8, 256, 768, 1, 0}, 2}, {{2, 64, 64, 192, 64, 1, 0}, 1, 64},
      {{32, 32, 32, 320, 128, 1, 0}}, {{33, 3, 3, 64, 64, 1, 0}},
  };
  std::vector<codegen::cuda::CudaPlan> plans;
  std::vector<Graph> graphs;
  for (const Row& row : kRows) {
    graphs.push_back(normalised_gradients(row.shapes, row.count, row.first));
    for (const passes::Prologues prologues : {passes::Prologues::never, passes::Prologues::always}) {
      runtime::CompileSettings settings;
      settings.precision = passes::Precision::bf16;
      settings.prologues = prologues;
      plans.push_back(runtime::plan_cuda(graphs.back(), {}, gpu.spec(), settings));
    }
  }
  testing::compile_together(gpu, plans);
  for (size_t i = 0; i < graphs.size(); ++i) {
    EXPECT_GT(plans[2 * i].calls.size(), plans[2 * i + 1].calls.size()) << graphs[i].name();
    std::vector<std::vector<std::byte>> results[2];
    for (const size_t computed : {0, 1}) {
      const auto executor = testing::execute(gpu, std::move(plans[2 * i + computed]));
      testing::write_random_inputs(*executor, graphs[i]);
      for (int step = 0; step < 3; ++step) executor->run();
      for (const ir::NamedValue& output : graphs[i].outputs()) {
        auto& result = results[computed].emplace_back(static_cast<size_t>(graphs[i].type(output.value).bytes()));
        executor->read_output(output.name, result);
      }
    }
    EXPECT_EQ(results[0], results[1]) << graphs[i].name();
  }
}

TEST(GpuWgrad, EveryRunGivesTheSameBits) {
  DIFUSE_NEED_GPU(gpu);
  for (const passes::Precision precision : {passes::Precision::tf32, passes::Precision::bf16}) {
    runtime::CompileSettings settings;
    settings.precision = precision;
    for (const WgradShapes& shapes :
         {WgradShapes{32, 16, 16, 192, 128, 3, 1}, WgradShapes{32, 16, 16, 192, 576, 1, 0}}) {
      const Graph graph = gradient(shapes);
      const auto executor = testing::execute(gpu, runtime::plan_cuda(graph, {}, gpu.spec(), settings));
      testing::write_random_inputs(*executor, graph);
      std::vector<float> first(static_cast<size_t>(shapes.k * shapes.taps * shapes.taps * shapes.c)),
          next(first.size());
      executor->run();
      executor->read_output("dw", std::as_writable_bytes(std::span(first)));
      for (int step = 0; step < 20; ++step) {
        executor->run();
        executor->read_output("dw", std::as_writable_bytes(std::span(next)));
        ASSERT_EQ(next, first) << graph.name() << " in " << passes::to_string(precision) << ", step " << step;
      }
    }
  }
}

}  // namespace
}  // namespace difuse
