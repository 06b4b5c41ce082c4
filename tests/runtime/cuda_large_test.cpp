// Tensors of more than 2^31 elements on a GPU. Draws are keyed by image, so the last image of a large batch is that of
// a batch of one, and a slice of it says whether 64-bit offsets were used all the way.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "ir/builder.h"
#include "runtime/compile.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/backend/gpu.h"

namespace difuse {
namespace {

using ir::Builder;
using ir::DType;
using ir::Value;

using Make = std::function<Value(Builder&, Value image)>;

/// The last rows of what `make` makes of the last of `images` random images of `shape`.
ir::Graph last_rows(int64_t images, const ir::Shape& shape, const Make& make) {
  ir::Graph graph("large");
  Builder b(graph);
  const Value image = b.random_normal(b.input("seed", {DType::u32, {2}}), b.input("index", {DType::i32, {images}}),
                                      b.input("step", {DType::i32, {}}), 1, shape);
  const Value y = make(b, b.cast(image, DType::bf16));
  int64_t most = 0;
  for (int id = 0; id < graph.size(); ++id) most = std::max(most, graph.node(id).types[0].elements());
  EXPECT_TRUE(images == 1 || most > (int64_t{1} << 31));
  const int64_t height = b.shape(y)[1];
  const Value last = b.slice(b.slice(y, 0, images - 1, images), 1, height - 2, height);
  graph.set_output("last", b.cast(last, DType::f32));
  return graph;
}

testing::CpuRun run_last(const runtime::Target& gpu, int64_t images, const ir::Shape& shape, const Make& make,
                         ir::TensorMap inputs) {
  inputs["index"] = ir::Tensor({DType::i32, {images}});
  for (int64_t i = 0; i < images; ++i) inputs["index"].data[static_cast<size_t>(i)] = static_cast<double>(99 - i);
  inputs["index"].data.back() = 7;
  const auto executor = runtime::compile(last_rows(images, shape, make), ir::Options{}, gpu);
  return testing::run(*executor, inputs, {});
}

void expect_alike(const runtime::Target& gpu, int64_t images, const ir::Shape& shape, const Make& make,
                  ir::TensorMap inputs = {}) {
  inputs["seed"] = ir::Tensor({DType::u32, {2}}, {3, 4});
  inputs["step"] = ir::Tensor({DType::i32, {}}, {5});
  const testing::CpuRun alone = run_last(gpu, 1, shape, make, inputs);
  testing::expect_same(run_last(gpu, images, shape, make, inputs), alone, "the last image");
  double sum = 0;
  const ir::Graph graph = last_rows(1, shape, make);
  for (const double x : testing::decode(graph.type(graph.outputs()[0].value), alone.outputs.at("last")).data) {
    sum += std::abs(x);
  }
  EXPECT_GT(sum, 1);
}

TEST(GpuLarge, UpsampleGivesMoreThan31BitsOfElements) {
  DIFUSE_NEED_GPU(gpu);
  expect_alike(gpu, 33, {512, 512, 64}, [](Builder& b, Value x) { return b.upsample_nearest(x); });
}

TEST(GpuLarge, ConvolutionGivesMoreThan31BitsOfElements) {
  DIFUSE_NEED_GPU(gpu);
  const ir::Type weights{DType::bf16, {36, 3, 3, 4}};
  ir::Tensor values(weights);
  for (size_t i = 0; i < values.data.size(); ++i) values.data[i] = static_cast<double>(i % 7) - 3;
  expect_alike(gpu, 60, {1024, 1024, 4},
               [&](Builder& b, Value x) { return b.conv_fprop(x, b.input("w", weights), 1, 1); }, {{"w", values}});
}

TEST(GpuLarge, ConvolutionReadsMoreThan31BitsOfElements) {
  DIFUSE_NEED_GPU(gpu);
  const ir::Type weights{DType::bf16, {8, 1, 1, 64}};
  ir::Tensor values(weights);
  for (size_t i = 0; i < values.data.size(); ++i) values.data[i] = static_cast<double>(i % 5) - 2;
  ir::TensorMap inputs{{"w", values}};
  expect_alike(
      gpu, 33, {512, 512, 64},
      [&](Builder& b, Value x) { return b.conv_fprop(b.upsample_nearest(x), b.input("w", weights), 1, 0); }, inputs);
}

}  // namespace
}  // namespace difuse
