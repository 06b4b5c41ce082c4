// Convolutions on a GPU, through every pass: batches and images that fill no tile, channels that fill no chunk.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>

#include "ir/builder.h"
#include "ir/strips.h"
#include "runtime/compile.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/backend/gpu.h"
#include "tests/support/op_rows.h"

namespace difuse {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Value;

struct ConvShapes {
  int64_t n, h, w, c, k, taps, pad, stride = 1;
};

/// The middle of a residual block: bias, time embedding, residual.
Graph block(const ConvShapes& s) {
  Graph graph(fmt::format("conv_{}x{}_n{}h{}w{}c{}k{}s{}", s.taps, s.taps, s.n, s.h, s.w, s.c, s.k, s.stride));
  Builder b(graph);
  const Value x = b.input("x", {DType::f32, {s.n, s.h, s.w, s.c}});
  const Value w = b.input("w", {DType::f32, {s.k, s.taps, s.taps, s.c}});
  const Value y = b.conv_fprop(x, w, s.stride, s.pad);
  const ir::Shape shape = b.shape(y);
  const Value biased = b.add(y, b.broadcast_channels(b.input("bias", {DType::f32, {s.k}}), shape));
  const Value timed = b.add(biased, b.broadcast_image_channels(b.input("time", {DType::f32, {s.n, s.k}}), shape));
  graph.set_output("y", b.add(b.input("residual", {DType::f32, shape}), timed));
  return graph;
}

TEST(GpuConv, ShapesThatFillNoTileMatchTheReference) {
  DIFUSE_NEED_GPU(gpu);
  constexpr ConvShapes kShapes[] = {
      {1, 32, 8, 64, 64, 3, 1},    {3, 64, 64, 64, 64, 3, 1},   {2, 64, 64, 192, 64, 3, 1}, {2, 64, 64, 64, 192, 3, 1},
      {3, 32, 32, 128, 128, 3, 1}, {5, 16, 16, 192, 192, 3, 1}, {7, 8, 8, 256, 256, 3, 1},  {13, 14, 14, 96, 40, 3, 1},
      {5, 7, 7, 72, 200, 3, 1},    {9, 28, 28, 32, 32, 3, 1},   {7, 9, 5, 136, 64, 3, 1},   {3, 12, 20, 64, 128, 3, 0},
      {3, 18, 22, 64, 72, 3, 2},   {3, 7, 9, 200, 72, 1, 0},    {2, 64, 64, 192, 64, 1, 0}, {3, 16, 16, 1024, 64, 1, 0},
      {1, 1, 1, 8, 8, 1, 0},       {1, 3, 3, 8, 8, 3, 1},       {2, 48, 80, 20, 100, 3, 1}, {2, 48, 80, 36, 4, 1, 0},
      {128, 4, 4, 256, 256, 3, 1}, {3, 4, 4, 96, 256, 3, 1},    {33, 4, 4, 36, 96, 3, 1},   {7, 5, 3, 512, 40, 3, 1},
      {1, 4, 4, 64, 64, 3, 1},     {21, 2, 2, 136, 72, 3, 1},   {3, 45, 4, 64, 64, 3, 1},   {5, 6, 5, 40, 64, 3, 0},
  };
  std::vector<Graph> graphs;
  for (const ConvShapes& shapes : kShapes) graphs.push_back(block(shapes));
  for (const passes::Precision precision : {passes::Precision::tf32, passes::Precision::bf16}) {
    testing::expect_nodes_agree(gpu, graphs, precision);
  }
}

/// What norms read of a convolution, forward and backward: statistics, and sums over pixels beside another tensor.
Graph statistics(const ConvShapes& s) {
  Graph graph(fmt::format("strips_{}x{}_n{}h{}w{}c{}k{}s{}", s.taps, s.taps, s.n, s.h, s.w, s.c, s.k, s.stride));
  Builder b(graph);
  const Value x = b.input("x", {DType::f32, {s.n, s.h, s.w, s.c}});
  const Value y = b.conv_fprop(x, b.input("w", {DType::f32, {s.k, s.taps, s.taps, s.c}}), s.stride, s.pad);
  const Value z = b.input("z", {DType::f32, b.shape(y)});
  const auto moments = b.channel_moments(y);
  const Value dz = b.mul(y, b.sigmoid(z));
  graph.set_output("y", y);
  graph.set_output("mean", moments.mean);
  graph.set_output("m2", moments.m2);
  graph.set_output("of_image", b.reduce_sum(dz, {1, 2}));
  graph.set_output("of_all", b.reduce_sum(b.mul(dz, z), {0, 1, 2}));
  return graph;
}

TEST(GpuConv, StatisticsAndSumsMatchTheReference) {
  DIFUSE_NEED_GPU(gpu);
  constexpr ConvShapes kShapes[] = {
      {3, 64, 64, 64, 64, 3, 1}, {2, 64, 64, 192, 64, 3, 1}, {3, 32, 32, 128, 128, 3, 1}, {5, 16, 16, 192, 192, 3, 1},
      {7, 8, 8, 256, 256, 3, 1}, {13, 14, 14, 96, 40, 3, 1}, {5, 7, 7, 72, 200, 3, 1},    {3, 28, 28, 32, 32, 3, 1},
      {2, 64, 64, 3, 64, 3, 1},  {3, 16, 16, 192, 64, 1, 0}, {3, 20, 9, 64, 64, 1, 0},    {2, 1, 1, 8, 8, 1, 0},
      {33, 4, 4, 256, 96, 3, 1}, {3, 4, 4, 36, 96, 3, 1},    {21, 2, 2, 96, 64, 3, 1},    {5, 4, 4, 512, 256, 1, 0},
      {3, 20, 3, 96, 64, 3, 1},
  };
  std::vector<Graph> graphs;
  for (const ConvShapes& shapes : kShapes) graphs.push_back(statistics(shapes));
  for (const auto precision : {passes::Precision::tf32, passes::Precision::bf16, passes::Precision::f32}) {
    testing::expect_nodes_agree(gpu, graphs, precision);
  }
}

TEST(GpuConv, StridesMatchTheReference) {
  DIFUSE_NEED_GPU(gpu);
  constexpr ConvShapes kShapes[] = {
      {128, 16, 16, 256, 256, 3, 1, 2}, {5, 32, 32, 128, 128, 3, 1, 2}, {5, 17, 21, 72, 136, 3, 1, 2},
      {3, 20, 13, 40, 64, 3, 0, 2},     {9, 8, 8, 128, 64, 3, 1, 2},    {2, 63, 35, 36, 100, 3, 2, 2},
  };
  std::vector<Graph> graphs;
  for (const ConvShapes& shapes : kShapes) graphs.insert(graphs.end(), {block(shapes), statistics(shapes)});
  for (const passes::Precision precision : {passes::Precision::tf32, passes::Precision::bf16}) {
    testing::expect_nodes_agree(gpu, graphs, precision);
  }
}

/// Of a stored image, what a norm's gradient sums behind a mask of bytes.
Graph masked_sums(const ConvShapes& s) {
  Graph graph(fmt::format("masked_{}x{}_n{}h{}w{}c{}k{}", s.taps, s.taps, s.n, s.h, s.w, s.c, s.k));
  Builder b(graph);
  const Value x = b.input("x", {DType::bf16, {s.n, s.h, s.w, s.c}});
  const Value w = b.input("w", {DType::bf16, {s.k, s.taps, s.taps, s.c}});
  const Value y = b.cast(b.conv_fprop(x, w, 1, s.pad), DType::bf16);
  const Value z = b.cast(b.input("z", {DType::bf16, b.shape(y)}), DType::f32);
  const Value kept = b.cast(b.input("mask", {DType::u8, b.shape(y)}), DType::f32);
  const Value dz = b.mul(b.mul(b.cast(y, DType::f32), kept), b.sigmoid(z));
  graph.set_output("y", y);
  graph.set_output("of_image", b.reduce_sum(dz, {1, 2}));
  graph.set_output("of_all", b.reduce_sum(b.mul(dz, z), {0, 1, 2}));
  return graph;
}

TEST(GpuConv, MaskedSumsMatchTheReference) {
  DIFUSE_NEED_GPU(gpu);
  constexpr ConvShapes kShapes[] = {
      {3, 64, 64, 64, 64, 3, 1},   {3, 32, 32, 128, 128, 3, 1}, {5, 16, 16, 192, 192, 3, 1}, {7, 8, 8, 256, 256, 3, 1},
      {13, 14, 14, 96, 48, 3, 1},  {5, 7, 7, 72, 208, 3, 1},    {9, 4, 4, 256, 256, 3, 1},   {3, 16, 16, 192, 64, 1, 0},
      {3, 32, 32, 384, 384, 3, 1}, {3, 20, 9, 64, 40, 3, 1},
  };
  std::vector<Graph> graphs;
  for (const ConvShapes& shapes : kShapes) graphs.push_back(masked_sums(shapes));
  testing::expect_nodes_agree(gpu, graphs, passes::Precision::bf16);
}

/// A normalise and a SiLU of an image, of the operands from `first` on: its statistics, or its strips', and a scale and
/// a shift.
Value normalised(Builder& b, Value image, const ir::Shape& statistics, int first) {
  const ir::Shape shape = b.shape(image), rows = {shape[0], shape[3]};
  const auto input = [&](const ir::Shape& of) { return b.input(std::to_string(first++), {DType::f32, of}); };
  Value mean = input(statistics), inverse = input(statistics);
  if (statistics != rows) {
    const auto finished = b.group_finish({{mean, inverse}}, {4, 0.5, shape[1], shape[2]});
    mean = finished.mean, inverse = finished.rstd;
  }
  Value x = b.sub(b.cast(image, DType::f32), b.broadcast_image_channels(mean, shape));
  x = b.mul(x, b.broadcast_image_channels(inverse, shape));
  x = b.mul(x, b.broadcast_channels(input({shape[3]}), shape));
  x = b.add(x, b.broadcast_image_channels(input(rows), shape));
  return b.cast(b.silu(x), DType::bf16);
}

/// A convolution of that, and a bias, as one kernel or several. `first`: channels of the first image where there are
/// two, one behind the other. `finishes`: statistics are those of strips.
Graph normalised_conv(const ConvShapes& s, bool together, int64_t first, bool finishes) {
  Graph graph("normalised_conv");
  Builder b(graph);
  const auto image_of = [&](int64_t channels) { return ir::Type{DType::bf16, {s.n, s.h, s.w, channels}}; };
  const ir::Type image = image_of(s.c), rows{DType::f32, {s.n, s.c}};
  const ir::Type statistics = finishes ? ir::Type{DType::f32, {s.n, ir::Strips{s.h, s.w}.count(), s.c}} : rows;
  std::vector<Value> images = {b.input("x", image_of(first > 0 ? first : s.c))};
  if (first > 0) images.push_back(b.input("x2", image_of(s.c - first)));
  std::vector<Value> before = {images[0], b.input("mean", statistics), b.input("inverse", statistics),
                               b.input("scale", {DType::f32, {s.c}}), b.input("shift", rows)};
  std::vector<Value> operands = {b.input("w", {DType::bf16, {s.k, s.taps, s.taps, s.c}}),
                                 b.input("bias", {DType::f32, {s.k}})};
  const auto body = std::make_shared<Graph>("body");
  Builder of(*body);
  Value x = of.input("0", together ? graph.type(before[0]) : image);
  if (together) {
    if (first > 0) x = of.concat({x, of.input("7", image_of(s.c - first))}, 3);
    x = normalised(of, x, statistics.shape, 3);
    operands.insert(operands.begin(), before[0]);
    operands.insert(operands.end(), before.begin() + 1, before.end());
    operands.insert(operands.end(), images.begin() + 1, images.end());
  } else {
    const auto apart = std::make_shared<Graph>("body");
    Builder of_apart(*apart);
    if (first > 0) before[0] = b.concat(images, 3);
    apart->set_output("0", normalised(of_apart, of_apart.input("0", image), statistics.shape, 1));
    operands.insert(operands.begin(), graph.add(ir::Op::fusion, before, ir::FusionAttrs{ir::Hero::pointwise, apart}));
  }
  const Value y = of.conv_fprop(x, of.input("1", graph.type(operands[1])), 1, s.pad);
  const Value biased = of.add(y, of.broadcast_channels(of.input("2", graph.type(operands[2])), of.shape(y)));
  body->set_output("0", of.cast(biased, DType::bf16));
  graph.set_output("y", graph.add(ir::Op::fusion, operands, ir::FusionAttrs{ir::Hero::conv, body}));
  return graph;
}

// In shared memory a prologue computes what its own kernel does, the border stays zero, and products are added in the
// same order.
TEST(GpuConv, APrologueChangesNoBit) {
  DIFUSE_NEED_GPU(gpu);
  if (gpu.spec().architecture != 90) GTEST_SKIP() << "only Hopper's convolution has prologues";
  struct Row {
    ConvShapes shapes;
    int64_t first = 0;  ///< Channels of the first image, where there are two.
    bool finishes = false;
  };
  constexpr Row kRows[] = {
      {{32, 64, 64, 64, 64, 3, 1}},
      {{3, 64, 64, 192, 64, 3, 1}, 128},
      {{33, 32, 32, 128, 128, 3, 1}},
      {{5, 16, 16, 192, 192, 3, 1}},
      {{7, 8, 8, 256, 256, 3, 1}},
      {{13, 14, 14, 96, 40, 3, 1}, 64},
      {{5, 7, 7, 72, 200, 3, 1}},
      {{9, 28, 28, 32, 32, 3, 1}},
      {{7, 9, 5, 136, 64, 3, 1}, 64},
      {{3, 12, 20, 64, 128, 3, 0}},
      {{3, 18, 22, 64, 72, 3, 2}},
      {{3, 7, 9, 200, 72, 1, 0}},
      {{32, 64, 64, 192, 64, 1, 0}, 64},
      {{3, 16, 16, 1024, 64, 1, 0}},
      {{33, 8, 8, 256, 768, 1, 0}},
      {{32, 8, 8, 256, 256, 3, 1}, 0, true},
      {{33, 16, 16, 192, 192, 3, 1}, 0, true},
      {{5, 8, 8, 192, 72, 1, 0}, 64, true},
  };
  std::vector<codegen::cuda::CudaPlan> plans;
  for (const Row& row : kRows) {
    for (const bool together : {false, true}) {
      plans.push_back(testing::plan_for(gpu, normalised_conv(row.shapes, together, row.first, row.finishes)));
    }
  }
  testing::compile_together(gpu, plans);
  for (size_t i = 0; i < std::size(kRows); ++i) {
    std::vector<std::byte> results[2];
    for (const bool together : {false, true}) {
      codegen::cuda::CudaPlan& plan = plans[2 * i + (together ? 1 : 0)];
      EXPECT_EQ(plan.calls.size() == 1, together);
      const Graph graph = plan.graph;
      const auto executor = testing::execute(gpu, std::move(plan));
      testing::write_random_inputs(*executor, graph);
      for (int step = 0; step < 3; ++step) executor->run();
      std::vector<std::byte>& result = results[together ? 1 : 0];
      result.resize(static_cast<size_t>(graph.type(graph.outputs()[0].value).bytes()));
      executor->read_output("y", result);
    }
    const ConvShapes& s = kRows[i].shapes;
    EXPECT_EQ(results[0], results[1]) << s.h << "x" << s.w << " " << s.c << " to " << s.k;
  }
}

TEST(GpuConv, AnImageHasTheSameBitsInEveryBatchAndEveryRun) {
  DIFUSE_NEED_GPU(gpu);
  const auto expect_same_bits = [&](passes::Precision precision, const ConvShapes& largest) {
    runtime::CompileSettings settings;
    settings.precision = precision;
    std::vector<float> first;
    for (const int64_t batch : {int64_t{1}, int64_t{2}, int64_t{5}, largest.n}) {
      ConvShapes shapes = largest;
      shapes.n = batch;
      const Graph graph = block(shapes);
      const auto executor = testing::execute(gpu, runtime::plan_cuda(graph, {}, gpu.spec(), settings));
      std::vector<float> image(static_cast<size_t>(shapes.h * shapes.w * shapes.k));
      for (const auto& [name, tensor] : testing::random_leaves(block(largest), ir::Op::input, 1)) {
        ir::Tensor part(graph.type(graph.find_input(name)));
        std::copy_n(tensor.data.begin(), part.data.size(), part.data.begin());
        executor->write_input(name, testing::encode(part));
      }
      for (int step = 0; step < 3; ++step) {
        executor->run();
        std::vector<float> all(static_cast<size_t>(batch) * image.size());
        executor->read_output("y", std::as_writable_bytes(std::span(all)));
        std::copy_n(all.begin(), image.size(), image.begin());
        if (first.empty()) first = image;
        EXPECT_EQ(image, first) << shapes.h << "x" << shapes.w << ", batch " << batch << ", step " << step;
      }
    }
  };
  for (const passes::Precision precision : {passes::Precision::tf32, passes::Precision::bf16}) {
    expect_same_bits(precision, {33, 16, 16, 128, 64, 3, 1});
    expect_same_bits(precision, {33, 4, 4, 128, 64, 3, 1});
  }
}

}  // namespace
}  // namespace difuse
