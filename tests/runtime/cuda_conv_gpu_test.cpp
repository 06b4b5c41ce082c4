// Convolutions on a GPU, through every pass: batches and images that fill no tile, channels that fill no chunk.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/builder.h"
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
  int64_t n, h, w, c, k, taps, pad;
};

/// The middle of a residual block: bias, time embedding, residual.
Graph block(const ConvShapes& s) {
  Graph graph(fmt::format("conv_{}x{}_n{}h{}w{}c{}k{}", s.taps, s.taps, s.n, s.h, s.w, s.c, s.k));
  Builder b(graph);
  const Value x = b.input("x", {DType::f32, {s.n, s.h, s.w, s.c}});
  const Value w = b.input("w", {DType::f32, {s.k, s.taps, s.taps, s.c}});
  const Value y = b.conv_fprop(x, w, 1, s.pad);
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
      {1, 1, 1, 8, 8, 1, 0},       {1, 3, 3, 8, 8, 3, 1},
  };
  std::vector<Graph> graphs;
  for (const ConvShapes& shapes : kShapes) graphs.push_back(block(shapes));
  testing::expect_nodes_agree(gpu, graphs, passes::Precision::bf16);
}

/// What norms read of a convolution, forward and backward: statistics, and sums over pixels beside another tensor.
Graph statistics(const ConvShapes& s) {
  Graph graph(fmt::format("strips_{}x{}_n{}h{}w{}c{}k{}", s.taps, s.taps, s.n, s.h, s.w, s.c, s.k));
  Builder b(graph);
  const Value x = b.input("x", {DType::f32, {s.n, s.h, s.w, s.c}});
  const Value y = b.conv_fprop(x, b.input("w", {DType::f32, {s.k, s.taps, s.taps, s.c}}), 1, s.pad);
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
  };
  std::vector<Graph> graphs;
  for (const ConvShapes& shapes : kShapes) graphs.push_back(statistics(shapes));
  for (const passes::Precision precision : {passes::Precision::bf16, passes::Precision::f32}) {
    testing::expect_nodes_agree(gpu, graphs, precision);
  }
}

TEST(GpuConv, AnImageHasTheSameBitsInEveryBatchAndEveryRun) {
  DIFUSE_NEED_GPU(gpu);
  runtime::CompileSettings settings;
  settings.precision = passes::Precision::bf16;
  std::vector<float> first;
  for (const int64_t batch : {1, 2, 5, 33}) {
    const Graph graph = block({batch, 16, 16, 128, 64, 3, 1});
    const auto executor = testing::execute(gpu, runtime::plan_cuda(graph, {}, gpu.spec(), settings));
    std::vector<float> image(16 * 16 * 64);
    for (const auto& [name, tensor] : testing::random_leaves(block({33, 16, 16, 128, 64, 3, 1}), ir::Op::input, 1)) {
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
      EXPECT_EQ(image, first) << "batch " << batch << ", step " << step;
    }
  }
}

}  // namespace
}  // namespace difuse
