// Rounding points: graphs in, text out; what is not rounded; fuel.
#include "passes/precision.h"

#include <gtest/gtest.h>

#include "ir/builder.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/autodiff.h"
#include "passes/canonicalize.h"
#include "passes/fusion/grow.h"
#include "tests/support/golden.h"
#include "tests/support/graphs/graphs.h"

namespace difuse::passes {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Shape;
using ir::Value;

PassResult round(const Graph& graph, Precision precision, Fuel fuel = {}) {
  const ir::DeviceSpec device;
  PassContext context{device, fuel};
  PassResult result = set_precision(graph, context, precision);
  ir::verify(result.graph);
  EXPECT_EQ(result.changed, ir::print(result.graph) != ir::print(graph));
  return result;
}

/// A graph under construction, with what the tests' models are made of.
struct Model {
  Graph graph{"g"};
  Builder b{graph};

  Value input(const std::string& name, Shape shape) { return b.input(name, {DType::f32, std::move(shape)}); }
  Value conv(const std::string& name, Value x, int64_t channels, int64_t taps = 1) {
    return b.conv_fprop(x, input(name, {channels, taps, taps, b.shape(x)[3]}), 1, taps / 2);
  }
  Value with_bias(const std::string& name, Value y) {
    return b.add(y, b.broadcast_channels(input(name, {b.shape(y).back()}), b.shape(y)));
  }
  void read(const std::string& name, Value image) { graph.set_output(name, b.channel_moments(image).mean); }
};

/// Expects the text of the golden file, and that rounding again changes nothing.
Graph expect_rounded(const Graph& graph, Precision precision, const std::string& golden) {
  Graph rounded = round(graph, precision).graph;
  EXPECT_FALSE(round(rounded, precision).changed) << golden << ": not idempotent";
  tests::expect_golden("passes/golden/precision/" + golden + ".ir", ir::print(rounded));
  return rounded;
}

// Names with Golden are run by ./dev update-golden.

// Each convolution's sum is rounded once, behind its bias, embedding and residual; the norm reads it rounded.
TEST(PrecisionGolden, WhatAConvolutionMakesIsRoundedWithAllThatIsAddedToIt) {
  Model m;
  const Value stem = m.with_bias("b0", m.conv("w0", m.input("x", {2, 4, 4, 3}), 8));
  m.read("stem", stem);
  const Value h = m.conv("w1", m.b.silu(stem), 8, 3);
  const Value embedded = m.b.add(h, m.b.broadcast_image_channels(m.input("emb", {2, 8}), m.b.shape(h)));
  m.read("embedded", embedded);
  m.read("block", m.b.add(stem, m.with_bias("b2", m.conv("w2", m.b.silu(embedded), 8, 3))));
  expect_rounded(m.graph, Precision::bf16, "residual_block");
  expect_rounded(m.graph, Precision::tf32, "residual_block_tf32");
}

// The one made last takes in the other, which is stored rounded.
TEST(PrecisionGolden, OfTwoConvolutionsThatAreAddedTheFirstIsRounded) {
  Model m;
  const Value x = m.input("x", {2, 4, 4, 8});
  const Value a = m.with_bias("b0", m.conv("w0", x, 8)), c = m.with_bias("b1", m.conv("w1", x, 8));
  m.read("sum", m.b.add(c, a));
  expect_rounded(m.graph, Precision::bf16, "two_convolutions");
}

// 16 bits are moved, then widened; the average computes.
TEST(PrecisionGolden, RoundedImagesAreMovedInSixteenBits) {
  Model m;
  const Value a = m.conv("w0", m.input("x", {2, 4, 4, 8}), 8), c = m.conv("w1", m.input("y", {2, 4, 4, 8}), 8);
  m.read("a", a);
  const Value both = m.b.concat({a, c}, 3);
  m.graph.set_output("both", m.b.silu(both));
  m.graph.set_output("up", m.b.exp(m.b.slice(m.b.upsample_nearest(both), 1, 0, 3)));
  const Value half = m.b.avg_pool(a);
  m.read("half", half);
  m.graph.set_output("down", m.conv("w2", half, 4));
  expect_rounded(m.graph, Precision::bf16, "movement");
}

TEST(PrecisionGolden, AttentionForwardAndBackward) {
  Model m;
  const Value x = m.with_bias("b0", m.conv("w0", m.input("x", {2, 2, 4, 8}), 8));
  const Value qkv = m.b.reshape(m.with_bias("b1", m.conv("w1", x, 24)), {2, 8, 24});
  const Value mixed = m.b.reshape(m.b.attention(qkv, {2, ir::QkvOrder::heads_first}).out, {2, 2, 4, 8});
  const Value y = m.b.add(x, m.with_bias("b2", m.conv("w2", mixed, 8)));
  const Value wanted[] = {m.graph.find_input("w1"), m.graph.find_input("b1"), m.graph.find_input("w0")};
  const Value loss = m.b.mean_all(m.b.square(y));
  const auto gradients = differentiate(m.b, loss, wanted);
  m.graph.set_output("loss", loss);
  m.graph.set_output("dw1", gradients[0]);
  m.graph.set_output("db1", gradients[1]);
  m.graph.set_output("dw0", gradients[2]);
  expect_rounded(m.graph, Precision::bf16, "attention");
}

// Pictures, matrices, sums over the batch and what leaves the graph are rounded for contractions alone.
TEST(PrecisionGolden, WhatStaysExactForOtherReaders) {
  Model m;
  const Value noisy = m.b.mul(m.input("x", {2, 4, 4, 3}), 0.5), answer = m.conv("w0", noisy, 3);
  m.graph.set_output("next", m.b.sub(noisy, answer));
  const Value h = m.conv("w1", m.input("y", {2, 4, 4, 8}), 8);
  m.graph.set_output("h", h);
  const Value rows = m.b.reduce_sum(h, {1, 2}), product = m.b.matmul(rows, m.input("m", {8, 8}));
  m.graph.set_output("rows", m.b.exp(rows));
  m.graph.set_output("product", m.b.exp(m.b.add(product, product)));
  m.graph.set_output("dw", m.b.exp(m.b.conv_wgrad(m.graph.find_input("y"), h, {1, 0, 1, 1})));
  expect_rounded(m.graph, Precision::bf16, "exact");
}

TEST(PrecisionGolden, ViewsOfAVectorAreRoundedTogether) {
  Model m;
  const Value params = m.b.state("params", {DType::f32, {320}}), other = m.b.state("other", {DType::f32, {1024}});
  const Value x = m.input("x", {2, 8});
  const Value y = m.b.matmul(x, m.b.view(params, 0, {8, 16})), z = m.b.matmul(y, m.b.view(params, 128, {16, 8}));
  const Value bias = m.b.broadcast_channels(m.b.view(params, 256, {8}), {2, 8});
  m.graph.set_output("y", m.b.add(z, bias));
  // Two small parts of a large vector.
  const Value u = m.b.matmul(x, m.b.view(other, 64, {8, 8}));
  m.graph.set_output("u", m.b.matmul(u, m.b.view(other, 512, {8, 8})));
  m.graph.set_update("params", m.b.mul(params, 0.5));
  expect_rounded(m.graph, Precision::bf16, "views");
  expect_rounded(m.graph, Precision::tf32, "views_tf32");
}

TEST(PrecisionGolden, NormBlockForwardAndBackward) {
  const ir::DeviceSpec device;
  Fuel fuel;
  PassContext context{device, fuel};
  const Graph graph = canonicalize(tests::norm_block(2, 8, 8, 8, 2), context).graph;
  const Graph rounded = expect_rounded(graph, Precision::bf16, "norm_block");
  tests::expect_same_results(graph, rounded, 0x1p-6);  // Bf16 keeps 8 bits.
  EXPECT_EQ(graph.outputs().size(), rounded.outputs().size());
  tests::expect_same_results(graph, round(graph, Precision::tf32).graph, 0x1p-9);
}

TEST(Precision, F32ChangesNothing) { EXPECT_FALSE(round(tests::norm_block(2, 8, 8, 8, 2), Precision::f32).changed); }

TEST(Precision, WithoutContractionsNothingIsRounded) {
  const Graph graph = tests::adam(64);
  EXPECT_FALSE(round(graph, Precision::bf16).changed);
  EXPECT_FALSE(round(graph, Precision::tf32).changed);
}

TEST(Precision, AFusedGraphStaysAsItIs) {
  const ir::DeviceSpec device;
  Fuel fuel;
  PassContext context{device, fuel};
  const Graph fused = fuse_clusters(tests::norm_block(2, 8, 8, 8, 2), context).graph;
  EXPECT_FALSE(round(fused, Precision::bf16).changed);
}

TEST(Precision, OperandsOfSixteenBitsStayAsTheyAre) {
  Model m;
  const Value x = m.b.input("x", {DType::f16, {2, 4, 4, 8}}), w = m.b.input("w", {DType::f16, {3, 1, 1, 8}});
  m.graph.set_output("y", m.b.conv_fprop(x, w, 1, 0));
  EXPECT_FALSE(round(m.graph, Precision::bf16).changed);
}

TEST(Precision, FuelIsSpentOnEachContractionEachImageAndEachVector) {
  Model m;
  const Value params = m.b.state("params", {DType::f32, {128}});
  const Value x = m.b.silu(m.input("x", {2, 4, 4, 8}));
  const Value y = m.b.conv_fprop(x, m.b.view(params, 0, {8, 1, 1, 8}), 1, 0);
  m.read("y", m.b.conv_fprop(y, m.b.view(params, 64, {8, 1, 1, 8}), 1, 0));
  const ir::DeviceSpec device;
  Fuel unlimited;
  PassContext context{device, unlimited};
  const std::string all = ir::print(set_precision(m.graph, context, Precision::bf16).graph);
  EXPECT_EQ(unlimited.spent(), 2 + 3 + 1);
  EXPECT_FALSE(round(m.graph, Precision::bf16, Fuel(0)).changed);
  for (int fuel = 1; fuel < 6; ++fuel) EXPECT_NE(ir::print(round(m.graph, Precision::bf16, Fuel(fuel)).graph), all);
  EXPECT_EQ(ir::print(round(m.graph, Precision::bf16, Fuel(6)).graph), all);
}

TEST(Precision, NamesAreParsed) {
  for (const Precision p : {Precision::f32, Precision::tf32, Precision::bf16}) {
    EXPECT_EQ(parse_precision(to_string(p)), p);
  }
  EXPECT_FALSE(parse_precision("fp32").has_value());
}

}  // namespace
}  // namespace difuse::passes
