// The grower: text in, text out; what must not fuse; how many kernels are left.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "ir/device_spec.h"
#include "ir/op.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/canonicalize.h"
#include "passes/fusion/grow.h"
#include "tests/support/golden.h"
#include "tests/support/graphs/graphs.h"

namespace difuse::passes {
namespace {

ir::Graph parse_body(const std::string& text) { return ir::parse("graph g {\n" + text + "\n}\n"); }

PassResult fuse(const ir::Graph& graph, FusionReport* report = nullptr, Fuel fuel = {},
                const ir::DeviceSpec& device = {}) {
  PassContext context{device, fuel};
  PassResult result = fuse_clusters(graph, context, report);
  ir::verify(result.graph);
  EXPECT_EQ(result.changed, ir::print(result.graph) != ir::print(graph));
  return result;
}

const ir::DeviceSpec& gpu() { return *ir::find_device_spec("h100"); }

ir::Graph canonical(const ir::Graph& graph) {
  const ir::DeviceSpec device;
  Fuel fuel;
  PassContext context{device, fuel};
  return canonicalize(graph, context).graph;
}

/// Fuses, compares the results with the unfused graph's and the text with the golden file, report included.
ir::Graph expect_fused(const ir::Graph& graph, const std::string& golden) {
  FusionReport report;
  ir::Graph fused = fuse(graph, &report).graph;
  tests::expect_same_results(graph, fused);
  std::string text;
  for (const std::string& line : report.lines) text += "# " + line + "\n";
  tests::expect_golden("passes/golden/" + golden + ".ir", text + ir::print(fused));
  return fused;
}

void expect_unchanged(const std::string& text) {
  const ir::Graph graph = parse_body(text);
  const PassResult result = fuse(graph);
  EXPECT_FALSE(result.changed);
  EXPECT_EQ(ir::print(result.graph), ir::print(graph));
}

// Names with Golden are run by ./dev update-golden.

TEST(FusionGolden, PointwiseChainIsOneKernel) {
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "x", dtype = f32, shape = [2, 4, 4, 3]} : f32[2, 4, 4, 3]
    %1 = input {name = "bias", dtype = f32, shape = [3]} : f32[3]
    %2 = broadcast %1 {shape = [2, 4, 4, 3], dims = [3]} : f32[2, 4, 4, 3]
    %3 = add %0, %2 : f32[2, 4, 4, 3]
    %4 = constant {value = 2, dtype = f32, shape = [2, 4, 4, 3]} : f32[2, 4, 4, 3]
    %5 = mul %3, %4 : f32[2, 4, 4, 3]
    %6 = silu %5 : f32[2, 4, 4, 3]
    output "y" = %6
    output "inner" = %3)");
  EXPECT_EQ(tests::kernel_count(expect_fused(graph, "pointwise_chain")), 1);
}

TEST(FusionGolden, ReductionsOverOneShapeShareOneRead) {
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "x", dtype = f32, shape = [2, 8, 8, 3]} : f32[2, 8, 8, 3]
    %1 = input {name = "dy", dtype = f32, shape = [2, 8, 8, 3]} : f32[2, 8, 8, 3]
    %2 = mul %0, %1 : f32[2, 8, 8, 3]
    %3 = reduce_sum %2 {axes = [1, 2]} : f32[2, 3]
    %4 = reduce_sum %1 {axes = [0, 1, 2]} : f32[3]
    %5 = channel_moments %1 : f32[2, 1, 3], f32[2, 1, 3]
    %6 = reduce_max %0 {axes = [3]} : f32[2, 8, 8]
    output "a" = %3
    output "b" = %4
    output "mean" = %5.0
    output "m2" = %5.1
    output "c" = %6
    output "product" = %2)");
  EXPECT_EQ(tests::kernel_count(expect_fused(graph, "reductions_share_a_read")), 1);
}

/// A row that is reduced, read again and reduced again: every value that somebody outside reads is a result.
TEST(FusionGolden, SoftmaxIsOneKernel) {
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "x", dtype = f32, shape = [2, 3, 8]} : f32[2, 3, 8]
    %1 = reduce_max %0 {axes = [2]} : f32[2, 3]
    %2 = broadcast %1 {shape = [2, 3, 8], dims = [0, 1]} : f32[2, 3, 8]
    %3 = sub %0, %2 : f32[2, 3, 8]
    %4 = exp %3 : f32[2, 3, 8]
    %5 = reduce_sum %4 {axes = [2]} : f32[2, 3]
    %6 = broadcast %5 {shape = [2, 3, 8], dims = [0, 1]} : f32[2, 3, 8]
    %7 = div %4, %6 : f32[2, 3, 8]
    output "y" = %7
    output "sum" = %5)");
  EXPECT_EQ(tests::kernel_count(expect_fused(graph, "softmax")), 1);
}

TEST(Fusion, WhatIsReducedIsReadAgainOverShortRowsOnly) {
  const auto kernels = [](const char* shape, const char* kept, const char* axes, const char* dims) {
    const auto text = fmt::format(R"(
      %0 = input {{name = "x", dtype = f32, shape = {0}}} : f32{0}
      %1 = silu %0 : f32{0}
      %2 = reduce_sum %1 {{axes = {2}}} : f32{1}
      %3 = broadcast %2 {{shape = {0}, dims = {3}}} : f32{0}
      %4 = sub %1, %3 : f32{0}
      output "y" = %4)",
                                  shape, kept, axes, dims);
    const ir::Graph graph = parse_body(text);
    const ir::Graph fused = fuse(graph).graph;
    tests::expect_same_results(graph, fused);
    return tests::kernel_count(fused);
  };
  EXPECT_EQ(kernels("[4, 8]", "[4]", "[1]", "[0]"), 1);
  EXPECT_EQ(kernels("[4, 2, 8]", "[4]", "[1, 2]", "[0]"), 1);
  EXPECT_EQ(kernels("[4, 8]", "[8]", "[0]", "[1]"), 2) << "columns";
  EXPECT_EQ(kernels("[4, 8, 2]", "[4, 2]", "[1]", "[0, 2]"), 2) << "not the last axis";
  EXPECT_EQ(kernels("[2, 1025]", "[2]", "[1]", "[0]"), 2) << "long rows";
}

TEST(Fusion, OtherReductionsStayOutOfALoopOverRows) {
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "x", dtype = f32, shape = [4, 8]} : f32[4, 8]
    %1 = reduce_sum %0 {axes = [1]} : f32[4]
    %2 = broadcast %1 {shape = [4, 8], dims = [0]} : f32[4, 8]
    %3 = sub %0, %2 : f32[4, 8]
    %4 = reduce_sum %3 {axes = [0]} : f32[8]
    output "y" = %3
    output "columns" = %4)");
  FusionReport report;
  const ir::Graph fused = fuse(graph, &report).graph;
  tests::expect_same_results(graph, fused);
  EXPECT_EQ(tests::kernel_count(fused), 2);
  const bool told = std::ranges::any_of(report.lines, [](const std::string& line) {
    return line.find("reductions over other axes than those of the rows") != std::string::npos;
  });
  EXPECT_TRUE(told);
}

TEST(Fusion, OnAGpuSmallValuesAndSlicesAreMadeWhereTheyAreRead) {
  const auto kernels = [](const std::string& text, const char* device) {
    const ir::Graph graph = parse_body(text);
    const ir::Graph fused = fuse(graph, nullptr, {}, *ir::find_device_spec(device)).graph;
    tests::expect_same_results(graph, fused);
    return tests::kernel_count(fused);
  };
  const std::string scaled = R"(
    %0 = input {name = "x", dtype = f32, shape = [2, 8, 8, 4]} : f32[2, 8, 8, 4]
    %1 = input {name = "rstd", dtype = f32, shape = [2, 4]} : f32[2, 4]
    %2 = input {name = "gamma", dtype = f32, shape = [4]} : f32[4]
    %3 = broadcast %2 {shape = [2, 4], dims = [1]} : f32[2, 4]
    %4 = mul %1, %3 : f32[2, 4]
    %5 = broadcast %4 {shape = [2, 8, 8, 4], dims = [0, 3]} : f32[2, 8, 8, 4]
    %6 = mul %0, %5 : f32[2, 8, 8, 4]
    output "y" = %6)";
  EXPECT_EQ(kernels(scaled, "h100"), 1);
  EXPECT_EQ(kernels(scaled + "\n output \"scale\" = %4", "h100"), 2) << "somebody reads it";
  const std::string sliced = R"(
    %0 = input {name = "x", dtype = f32, shape = [2, 8, 8, 4]} : f32[2, 8, 8, 4]
    %1 = input {name = "shift", dtype = f32, shape = [2, 12]} : f32[2, 12]
    %2 = slice %1 {axis = 1, begin = 4, end = 8} : f32[2, 4]
    %3 = broadcast %2 {shape = [2, 8, 8, 4], dims = [0, 3]} : f32[2, 8, 8, 4]
    %4 = add %0, %3 : f32[2, 8, 8, 4]
    %5 = reduce_sum %4 {axes = [0, 1, 2]} : f32[4]
    output "y" = %4
    output "sum" = %5)";
  EXPECT_EQ(kernels(sliced, "h100"), 1);
  const std::string part = R"(
    %0 = input {name = "x", dtype = f32, shape = [2, 8, 8, 4]} : f32[2, 8, 8, 4]
    %1 = input {name = "both", dtype = f32, shape = [2, 8, 8, 12]} : f32[2, 8, 8, 12]
    %2 = slice %1 {axis = 3, begin = 4, end = 8} : f32[2, 8, 8, 4]
    %3 = add %0, %2 : f32[2, 8, 8, 4]
    output "y" = %3)";
  EXPECT_EQ(kernels(part, "h100"), 1);
  EXPECT_EQ(kernels(part + "\n output \"part\" = %2", "h100"), 2) << "somebody reads it";
  const std::string small = R"(
    %0 = input {name = "x", dtype = f32, shape = [2, 3, 4]} : f32[2, 3, 4]
    %1 = input {name = "shift", dtype = f32, shape = [2, 4]} : f32[2, 4]
    %2 = silu %1 : f32[2, 4]
    %3 = broadcast %2 {shape = [2, 3, 4], dims = [0, 2]} : f32[2, 3, 4]
    %4 = add %0, %3 : f32[2, 3, 4]
    output "y" = %4)";
  EXPECT_EQ(kernels(small, "h100"), 2) << "repeated a few times only";
}

TEST(Fusion, OnACpuSmallValuesAreMade) {
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "x", dtype = f32, shape = [2, 8, 8, 4]} : f32[2, 8, 8, 4]
    %1 = input {name = "shift", dtype = f32, shape = [2, 4]} : f32[2, 4]
    %2 = silu %1 : f32[2, 4]
    %3 = broadcast %2 {shape = [2, 8, 8, 4], dims = [0, 3]} : f32[2, 8, 8, 4]
    %4 = add %0, %3 : f32[2, 8, 8, 4]
    output "y" = %4)");
  EXPECT_EQ(tests::kernel_count(fuse(graph).graph), 2);
}

TEST(FusionGolden, CastStaysWhereItIs) {
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "x", dtype = f32, shape = [2, 8, 8, 3]} : f32[2, 8, 8, 3]
    %1 = silu %0 : f32[2, 8, 8, 3]
    %2 = cast %1 {dtype = bf16} : bf16[2, 8, 8, 3]
    %3 = channel_moments %2 : f32[2, 1, 3], f32[2, 1, 3]
    output "y" = %2
    output "mean" = %3.0)");
  EXPECT_EQ(tests::kernel_count(expect_fused(graph, "cast_stays")), 1);
}

TEST(FusionGolden, NormBlockForwardAndBackward) {
  const ir::Graph graph = canonical(tests::norm_block(2, 8, 8, 8, 2));
  const ir::Graph fused = expect_fused(graph, "norm_block");
  EXPECT_EQ(tests::kernel_count(graph), 58);
  EXPECT_EQ(tests::kernel_count(fused), 14);
}

TEST(FusionGolden, AdamIsTwoPassesOverTheVector) {
  const ir::Graph fused = expect_fused(tests::adam(100), "adam");
  EXPECT_EQ(tests::kernel_count(fused), 3);  // The norm, its scalars, the update.
}

TEST(Fusion, ForwardSavesNothingThatTheBackwardCanRecompute) {
  const ir::Graph fused = fuse(canonical(tests::norm_block(2, 8, 8, 8, 2))).graph;
  // The full-size tensors are what the convolutions make (the image behind its bias, the answer and its gradient, the
  // gradient of the second's operand), that operand itself, and the first's gradient.
  int full_size = 0;
  for (int id = 0; id < fused.size(); ++id) {
    if (ir::has_trait(fused.node(id), ir::kLeaf)) continue;
    for (const ir::Type& t : fused.node(id).types) full_size += t.shape == ir::Shape{2, 8, 8, 8};
  }
  EXPECT_EQ(full_size, 6);
}

TEST(Fusion, PathThatLeavesAndComesBackIsRefusedAndExplained) {
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "x", dtype = f32, shape = [4, 8]} : f32[4, 8]
    %1 = exp %0 : f32[4, 8]
    %2 = reduce_sum %1 {axes = [0]} : f32[8]
    %3 = broadcast %2 {shape = [4, 8], dims = [1]} : f32[4, 8]
    %4 = div %1, %3 : f32[4, 8]
    output "shares" = %4)");
  FusionReport report;
  const ir::Graph fused = fuse(graph, &report).graph;
  tests::expect_same_results(graph, fused);
  EXPECT_EQ(tests::kernel_count(fused), 2);
  ASSERT_FALSE(report.lines.empty());
  EXPECT_EQ(report.lines[0], "refused %1 exp with %4 div: a path goes round by %3 broadcast");
}

TEST(Fusion, RecomputeThatWouldReadMoreIsNotDone) {
  // y is the sum of two images and is read twice after a matmul-like barrier: saving it moves less.
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "a", dtype = f32, shape = [2, 4, 4, 2]} : f32[2, 4, 4, 2]
    %1 = input {name = "b", dtype = f32, shape = [2, 4, 4, 2]} : f32[2, 4, 4, 2]
    %2 = add %0, %1 : f32[2, 4, 4, 2]
    %3 = avg_pool %2 : f32[2, 2, 2, 2]
    %4 = upsample_nearest %3 : f32[2, 4, 4, 2]
    %5 = mul %2, %4 : f32[2, 4, 4, 2]
    %6 = avg_pool %5 : f32[2, 2, 2, 2]
    %7 = upsample_nearest %6 : f32[2, 4, 4, 2]
    %8 = mul %2, %7 : f32[2, 4, 4, 2]
    output "y" = %8)");
  FusionReport report;
  const PassResult result = fuse(graph, &report);
  EXPECT_FALSE(result.changed);
  for (const std::string& line : report.lines) EXPECT_EQ(line.find("recomputed"), std::string::npos) << line;
}

TEST(Fusion, LoneOpsStayPlainNodes) {
  expect_unchanged(R"(
    %0 = input {name = "x", dtype = f32, shape = [4, 8]} : f32[4, 8]
    %1 = silu %0 : f32[4, 8]
    output "y" = %1)");
  expect_unchanged(R"(
    %0 = input {name = "x", dtype = f32, shape = [4, 8]} : f32[4, 8]
    %1 = reduce_sum %0 {axes = [1]} : f32[4]
    output "y" = %1)");
}

TEST(FusionGolden, ConvolutionTakesBiasEmbeddingResidualAndCast) {
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "x", dtype = bf16, shape = [2, 4, 4, 8]} : bf16[2, 4, 4, 8]
    %1 = input {name = "w", dtype = bf16, shape = [6, 3, 3, 8]} : bf16[6, 3, 3, 8]
    %2 = input {name = "bias", dtype = f32, shape = [6]} : f32[6]
    %3 = input {name = "emb", dtype = f32, shape = [2, 6]} : f32[2, 6]
    %4 = input {name = "skip", dtype = bf16, shape = [2, 4, 4, 6]} : bf16[2, 4, 4, 6]
    %5 = conv_fprop %0, %1 {stride = 1, pad = 1} : f32[2, 4, 4, 6]
    %6 = broadcast %2 {shape = [2, 4, 4, 6], dims = [3]} : f32[2, 4, 4, 6]
    %7 = add %5, %6 : f32[2, 4, 4, 6]
    %8 = broadcast %3 {shape = [2, 4, 4, 6], dims = [0, 3]} : f32[2, 4, 4, 6]
    %9 = add %7, %8 : f32[2, 4, 4, 6]
    %10 = cast %4 {dtype = f32} : f32[2, 4, 4, 6]
    %11 = add %10, %9 : f32[2, 4, 4, 6]
    %12 = cast %11 {dtype = bf16} : bf16[2, 4, 4, 6]
    %13 = cast %12 {dtype = f32} : f32[2, 4, 4, 6]
    %14 = channel_moments %13 : f32[2, 1, 6], f32[2, 1, 6]
    %15 = silu %13 : f32[2, 4, 4, 6]
    %16 = avg_pool %15 : f32[2, 2, 2, 6]
    output "mean" = %14.0
    output "m2" = %14.1
    output "half" = %16)");
  // The convolution, with the moments of what it rounds and the silu that the average reads; the average.
  EXPECT_EQ(tests::kernel_count(expect_fused(graph, "conv_epilogue")), 2);
}

TEST(FusionGolden, AConvolutionTakesItsMomentsAndSums) {
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "x", dtype = f32, shape = [2, 4, 4, 8]} : f32[2, 4, 4, 8]
    %1 = input {name = "w", dtype = f32, shape = [6, 3, 3, 8]} : f32[6, 3, 3, 8]
    %2 = input {name = "bias", dtype = f32, shape = [6]} : f32[6]
    %3 = conv_fprop %0, %1 {stride = 1, pad = 1} : f32[2, 4, 4, 6]
    %4 = broadcast %2 {shape = [2, 4, 4, 6], dims = [3]} : f32[2, 4, 4, 6]
    %5 = add %3, %4 : f32[2, 4, 4, 6]
    %6 = channel_moments %5 : f32[2, 1, 6], f32[2, 1, 6]
    %7 = mul %5, %5 : f32[2, 4, 4, 6]
    %8 = reduce_sum %7 {axes = [1, 2]} : f32[2, 6]
    output "mean" = %6.0
    output "squares" = %8)");
  EXPECT_EQ(tests::kernel_count(expect_fused(graph, "conv_moments")), 1);
}

TEST(FusionGolden, MomentsOfAnAverageStayAKernelOfTheirOwn) {
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "x", dtype = f32, shape = [2, 8, 8, 6]} : f32[2, 8, 8, 6]
    %1 = avg_pool %0 : f32[2, 4, 4, 6]
    %2 = exp %1 : f32[2, 4, 4, 6]
    %3 = channel_moments %2 : f32[2, 1, 6], f32[2, 1, 6]
    output "y" = %2
    output "mean" = %3.0
    output "m2" = %3.1)");
  EXPECT_EQ(tests::kernel_count(expect_fused(graph, "average_moments")), 2);
}

// dx needs the sums, so that it is made elsewhere, from dz again.
TEST(FusionGolden, SumsOfAGradientJoinItsConvolution) {
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "dy", dtype = bf16, shape = [2, 4, 4, 8]} : bf16[2, 4, 4, 8]
    %1 = input {name = "w", dtype = bf16, shape = [6, 3, 3, 8]} : bf16[6, 3, 3, 8]
    %2 = input {name = "x", dtype = bf16, shape = [2, 4, 4, 6]} : bf16[2, 4, 4, 6]
    %3 = conv_fprop %0, %1 {stride = 1, pad = 1} : f32[2, 4, 4, 6]
    %4 = cast %3 {dtype = bf16} : bf16[2, 4, 4, 6]
    %5 = cast %4 {dtype = f32} : f32[2, 4, 4, 6]
    %6 = cast %2 {dtype = f32} : f32[2, 4, 4, 6]
    %7 = sigmoid %6 : f32[2, 4, 4, 6]
    %8 = mul %5, %7 : f32[2, 4, 4, 6]
    %9 = reduce_sum %8 {axes = [1, 2]} : f32[2, 6]
    %10 = mul %8, %6 : f32[2, 4, 4, 6]
    %11 = reduce_sum %10 {axes = [0, 1, 2]} : f32[6]
    %12 = broadcast %9 {shape = [2, 4, 4, 6], dims = [0, 3]} : f32[2, 4, 4, 6]
    %13 = sub %8, %12 : f32[2, 4, 4, 6]
    output "dx" = %13
    output "dgamma" = %11)");
  EXPECT_EQ(tests::kernel_count(expect_fused(graph, "gradient_sums")), 2);
}

TEST(FusionGolden, SumsStayApartFromAConvolutionThatTheyMeetTwice) {
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "x", dtype = f32, shape = [2, 4, 4, 8]} : f32[2, 4, 4, 8]
    %1 = input {name = "w", dtype = f32, shape = [8, 3, 3, 8]} : f32[8, 3, 3, 8]
    %2 = conv_fprop %0, %1 {stride = 1, pad = 1} : f32[2, 4, 4, 8]
    %3 = reverse %2 {axis = 2} : f32[2, 4, 4, 8]
    %4 = mul %2, %3 : f32[2, 4, 4, 8]
    %5 = reduce_sum %4 {axes = [1, 2]} : f32[2, 8]
    output "turned" = %3
    output "sums" = %5)");
  EXPECT_EQ(tests::kernel_count(expect_fused(graph, "sums_apart")), 3);
}

TEST(FusionGolden, OfTwoConvolutionsThatAreAddedTheLaterTakesTheSum) {
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "x", dtype = f32, shape = [2, 4, 4, 8]} : f32[2, 4, 4, 8]
    %1 = input {name = "w0", dtype = f32, shape = [6, 3, 3, 8]} : f32[6, 3, 3, 8]
    %2 = input {name = "w1", dtype = f32, shape = [6, 1, 1, 8]} : f32[6, 1, 1, 8]
    %3 = input {name = "bias", dtype = f32, shape = [6]} : f32[6]
    %4 = conv_fprop %0, %1 {stride = 1, pad = 1} : f32[2, 4, 4, 6]
    %5 = broadcast %3 {shape = [2, 4, 4, 6], dims = [3]} : f32[2, 4, 4, 6]
    %6 = add %4, %5 : f32[2, 4, 4, 6]
    %7 = conv_fprop %0, %2 {stride = 1, pad = 0} : f32[2, 4, 4, 6]
    %8 = add %7, %6 : f32[2, 4, 4, 6]
    %9 = silu %8 : f32[2, 4, 4, 6]
    output "y" = %9)");
  EXPECT_EQ(tests::kernel_count(expect_fused(graph, "two_convs_added")), 2);
}

TEST(FusionGolden, MatmulMakesSeveralResults) {
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "x", dtype = f32, shape = [4, 8]} : f32[4, 8]
    %1 = input {name = "w0", dtype = f32, shape = [8, 16]} : f32[8, 16]
    %2 = input {name = "w1", dtype = f32, shape = [16, 3]} : f32[16, 3]
    %3 = input {name = "bias", dtype = f32, shape = [16]} : f32[16]
    %4 = matmul %0, %1 {transpose_a = false, transpose_b = false} : f32[4, 16]
    %5 = broadcast %3 {shape = [4, 16], dims = [1]} : f32[4, 16]
    %6 = add %4, %5 : f32[4, 16]
    %7 = silu %6 : f32[4, 16]
    %8 = round_tf32 %7 : f32[4, 16]
    %9 = matmul %8, %2 {transpose_a = false, transpose_b = false} : f32[4, 3]
    output "before" = %6
    output "y" = %9)");
  EXPECT_EQ(tests::kernel_count(expect_fused(graph, "matmul_results")), 2);
}

TEST(FusionGolden, AttentionAndAveragesCastWhatTheyMake) {
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "qkv", dtype = bf16, shape = [2, 16, 24]} : bf16[2, 16, 24]
    %1 = attention %0 {heads = 2, order = heads_first} : f32[2, 16, 8], f32[2, 2, 16]
    %2 = cast %1.0 {dtype = bf16} : bf16[2, 16, 8]
    %3 = reshape %2 {shape = [2, 4, 4, 8]} : bf16[2, 4, 4, 8]
    %4 = cast %3 {dtype = f32} : f32[2, 4, 4, 8]
    %5 = avg_pool %4 : f32[2, 2, 2, 8]
    %6 = constant {value = 4, dtype = f32, shape = [2, 2, 2, 8]} : f32[2, 2, 2, 8]
    %7 = mul %5, %6 : f32[2, 2, 2, 8]
    %8 = cast %7 {dtype = bf16} : bf16[2, 2, 2, 8]
    output "y" = %8
    output "lse" = %1.1)");
  EXPECT_EQ(tests::kernel_count(expect_fused(graph, "attention_and_average")), 2);
}

TEST(Fusion, WhatAnEpilogueWouldHaveToComputeFirstStaysOutside) {
  // The slope of silu has no other reader: in the convolution's kernel it would be computed for each tile.
  FusionReport report;
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "x", dtype = f32, shape = [2, 4, 4, 8]} : f32[2, 4, 4, 8]
    %1 = input {name = "w", dtype = f32, shape = [6, 3, 3, 8]} : f32[6, 3, 3, 8]
    %2 = input {name = "z", dtype = f32, shape = [2, 4, 4, 6]} : f32[2, 4, 4, 6]
    %3 = conv_fprop %0, %1 {stride = 1, pad = 1} : f32[2, 4, 4, 6]
    %4 = sigmoid %2 : f32[2, 4, 4, 6]
    %5 = mul %3, %4 : f32[2, 4, 4, 6]
    output "y" = %5)");
  const ir::Graph fused = fuse(graph, &report).graph;
  EXPECT_EQ(tests::kernel_count(fused), 2);
  ASSERT_FALSE(report.lines.empty());
  EXPECT_EQ(report.lines[0],
            "refused %5 mul in the epilogue of %3 conv_fprop: nobody else stores its operand %4 sigmoid");
}

TEST(Fusion, AResultMoreIsNotWorthAnEpilogue) {
  // The sum reads what the convolution stores for its other reader.
  expect_unchanged(R"(
    %0 = input {name = "x", dtype = f32, shape = [2, 4, 4, 8]} : f32[2, 4, 4, 8]
    %1 = input {name = "w", dtype = f32, shape = [6, 3, 3, 8]} : f32[6, 3, 3, 8]
    %2 = input {name = "z", dtype = f32, shape = [2, 4, 4, 6]} : f32[2, 4, 4, 6]
    %3 = conv_fprop %0, %1 {stride = 1, pad = 1} : f32[2, 4, 4, 6]
    %4 = upsample_nearest %3 : f32[2, 8, 8, 6]
    %5 = add %3, %2 : f32[2, 4, 4, 6]
    output "up" = %4
    output "y" = %5)");
}

TEST(Fusion, WithoutEpiloguesContractionsAndAveragesStayPlain) {
  const ir::DeviceSpec device;
  Fuel fuel;
  PassContext context{device, fuel};
  const ir::Graph graph = canonical(tests::norm_block(2, 8, 8, 8, 2));
  const ir::Graph fused = fuse_clusters(graph, context, nullptr, {.epilogues = false}).graph;
  tests::expect_same_results(graph, fused);
  EXPECT_EQ(ir::print(fused).find("hero = conv"), std::string::npos);
}

TEST(Fusion, MovementContractionsAndRandomDrawsStayOutside) {
  expect_unchanged(R"(
    %0 = input {name = "x", dtype = f32, shape = [4, 8]} : f32[4, 8]
    %1 = input {name = "seed", dtype = u32, shape = [2]} : u32[2]
    %2 = input {name = "index", dtype = i32, shape = [4]} : i32[4]
    %3 = input {name = "step", dtype = i32, shape = []} : i32[]
    %4 = random_normal %1, %2, %3 {stream = 1, shape = [8]} : f32[4, 8]
    %5 = transpose %4 {perm = [1, 0]} : f32[8, 4]
    %6 = matmul %0, %5 {transpose_a = false, transpose_b = false} : f32[4, 4]
    %7 = slice %6 {axis = 0, begin = 0, end = 2} : f32[2, 4]
    %8 = reshape %7 {shape = [8]} : f32[8]
    output "y" = %8)");
}

TEST(Fusion, OtherShapesStayApart) {
  expect_unchanged(R"(
    %0 = input {name = "x", dtype = f32, shape = [4, 8]} : f32[4, 8]
    %1 = silu %0 : f32[4, 8]
    %2 = reshape %1 {shape = [32]} : f32[32]
    %3 = exp %2 : f32[32]
    output "y" = %3)");
}

/// The loop's normalised image and a convolution read what is concatenated.
const char* const kConcatenated = R"(
    %0 = input {name = "a", dtype = f32, shape = [2, 4, 4, 8]} : f32[2, 4, 4, 8]
    %1 = input {name = "b", dtype = f32, shape = [2, 4, 4, 16]} : f32[2, 4, 4, 16]
    %2 = input {name = "w", dtype = f32, shape = [6, 3, 3, 24]} : f32[6, 3, 3, 24]
    %3 = concat %0, %1 {axis = 3} : f32[2, 4, 4, 24]
    %4 = silu %3 : f32[2, 4, 4, 24]
    %5 = conv_fprop %3, %2 {stride = 1, pad = 1} : f32[2, 4, 4, 6]
    output "y" = %4
    output "z" = %5)";

TEST(Fusion, ALoopTakesInTheConcatenationThatItReads) {
  const ir::Graph graph = parse_body(kConcatenated);
  FusionReport report;
  const ir::Graph fused = fuse(graph, &report, {}, gpu()).graph;
  tests::expect_same_results(graph, fused);
  EXPECT_EQ(tests::kernel_count(fused), 2);
  EXPECT_EQ(report.lines[0], "joined %3 concat into the fusion of %4");
  EXPECT_FALSE(fuse(fused, nullptr, {}, gpu()).changed);
  // Loops of the CPU go over memory as it lies.
  expect_unchanged(kConcatenated);
}

TEST(Fusion, MovementStaysOutOfALoopThatWaitsForItsOtherReaders) {
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "a", dtype = f32, shape = [2, 4, 4, 8]} : f32[2, 4, 4, 8]
    %1 = input {name = "w", dtype = f32, shape = [16, 3, 3, 16]} : f32[16, 3, 3, 16]
    %2 = concat %0, %0 {axis = 3} : f32[2, 4, 4, 16]
    %3 = conv_fprop %2, %1 {stride = 1, pad = 1} : f32[2, 4, 4, 16]
    %4 = upsample_nearest %3 : f32[2, 8, 8, 16]
    %5 = slice %4 {axis = 1, begin = 0, end = 4} : f32[2, 4, 8, 16]
    %6 = slice %5 {axis = 2, begin = 0, end = 4} : f32[2, 4, 4, 16]
    %7 = mul %2, %6 : f32[2, 4, 4, 16]
    output "y" = %7)");
  FusionReport report;
  const ir::Graph fused = fuse(graph, &report, {}, gpu()).graph;
  tests::expect_same_results(graph, fused);
  EXPECT_EQ(std::ranges::count(report.lines, "refused %2 concat into the fusion of %7: a path goes round by %3"), 1)
      << fmt::format("{}", fmt::join(report.lines, "\n"));
}

/// Noise that a loop adds and somebody else reads later.
const char* const kNoisy = R"(
    %0 = input {name = "x", dtype = f32, shape = [4, 8]} : f32[4, 8]
    %1 = input {name = "seed", dtype = u32, shape = [2]} : u32[2]
    %2 = input {name = "index", dtype = i32, shape = [4]} : i32[4]
    %3 = input {name = "step", dtype = i32, shape = []} : i32[]
    %4 = random_normal %1, %2, %3 {stream = 1, shape = [8]} : f32[4, 8]
    %5 = add %0, %4 : f32[4, 8]
    %6 = transpose %5 {perm = [1, 0]} : f32[8, 4]
    %7 = matmul %5, %6 {transpose_a = false, transpose_b = false} : f32[4, 4]
    %8 = reduce_sum %7 {axes = [1]} : f32[4]
    %9 = broadcast %8 {shape = [4, 8], dims = [0]} : f32[4, 8]
    %10 = mul %9, %4 : f32[4, 8]
    %11 = reduce_sum %10 {axes = [0, 1]} : f32[]
    output "y" = %11)";

TEST(Fusion, TheFirstLoopThatReadsADrawMakesIt) {
  const ir::Graph graph = parse_body(kNoisy);
  FusionReport report;
  const ir::Graph fused = fuse(graph, &report, {}, gpu()).graph;
  tests::expect_same_results(graph, fused);
  EXPECT_EQ(tests::kernel_count(fused), tests::kernel_count(fuse(graph, nullptr).graph) - 1);
  EXPECT_EQ(std::ranges::count(report.lines, "joined %4 random_normal into the fusion of %5"), 1)
      << fmt::format("{}", fmt::join(report.lines, "\n"));
  EXPECT_FALSE(fuse(fused, nullptr, {}, gpu()).changed);
}

TEST(Fusion, AReductionReadsADrawFromMemory) {
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "seed", dtype = u32, shape = [2]} : u32[2]
    %1 = input {name = "index", dtype = i32, shape = [4]} : i32[4]
    %2 = input {name = "step", dtype = i32, shape = []} : i32[]
    %3 = random_uniform %0, %1, %2 {stream = 1, shape = [8]} : f32[4, 8]
    %4 = exp %3 : f32[4, 8]
    %5 = reduce_sum %4 {axes = [0]} : f32[8]
    output "y" = %5)");
  const ir::Graph fused = fuse(graph, nullptr, {}, gpu()).graph;
  EXPECT_EQ(tests::kernel_count(fused), 2);
}

/// What is drawn is compared and scaled, before a convolution and, with `kept` the type between, behind it.
std::string dropped(const std::string& kept) {
  return fmt::format(R"(
    %0 = input {{name = "x", dtype = f32, shape = [4, 8, 8, 8]}} : f32[4, 8, 8, 8]
    %1 = input {{name = "w", dtype = f32, shape = [8, 1, 1, 8]}} : f32[8, 1, 1, 8]
    %2 = input {{name = "seed", dtype = u32, shape = [2]}} : u32[2]
    %3 = input {{name = "index", dtype = i32, shape = [4]}} : i32[4]
    %4 = input {{name = "step", dtype = i32, shape = []}} : i32[]
    %5 = random_uniform %2, %3, %4 {{stream = 1, shape = [8, 8, 8]}} : f32[4, 8, 8, 8]
    %6 = constant {{value = 0.5, dtype = f32, shape = [4, 8, 8, 8]}} : f32[4, 8, 8, 8]
    %7 = less_equal %6, %5 : f32[4, 8, 8, 8]
    %8 = cast %7 {{dtype = {0}}} : {0}[4, 8, 8, 8]
    %9 = cast %8 {{dtype = f32}} : f32[4, 8, 8, 8]
    %10 = constant {{value = 2, dtype = f32, shape = [4, 8, 8, 8]}} : f32[4, 8, 8, 8]
    %11 = mul %9, %10 : f32[4, 8, 8, 8]
    %12 = mul %0, %11 : f32[4, 8, 8, 8]
    %13 = conv_fprop %12, %1 {{stride = 1, pad = 0}} : f32[4, 8, 8, 8]
    %14 = mul %13, %11 : f32[4, 8, 8, 8]
    %15 = reduce_sum %14 {{axes = [3]}} : f32[4, 8, 8]
    output "y" = %15)",
                     kept);
}

/// Types of what the fusions of loops store, in their order.
std::string stored_by_loops(const ir::Graph& graph) {
  std::string types;
  for (int id = 0; id < graph.size(); ++id) {
    const ir::Node& node = graph.node(id);
    if (node.op != ir::Op::fusion || node.as<ir::FusionAttrs>().hero == ir::Hero::conv) continue;
    for (const ir::Type& type : node.types) types += (types.empty() ? "" : ", ") + ir::to_string(type);
  }
  return types;
}

TEST(Fusion, TheNarrowestValueOfAChainIsWhatItsReadersRead) {
  for (const ir::DeviceSpec& device : {gpu(), ir::DeviceSpec{}}) {
    const ir::Graph graph = parse_body(dropped("u8"));
    FusionReport report;
    const ir::Graph fused = fuse(graph, &report, {}, device).graph;
    tests::expect_same_results(graph, fused);
    EXPECT_EQ(stored_by_loops(fused), "u8[4, 8, 8, 8], f32[4, 8, 8, 8], f32[4, 8, 8]");
    // 8 KB written and not read: 2 KB written and read.
    const auto is_told = [](const std::string& line) {
      return line.starts_with("recomputed %11 mul (2 ops)") && line.ends_with(", of %8 cast: 12288 bytes less");
    };
    EXPECT_EQ(std::ranges::count_if(report.lines, is_told), 1) << fmt::format("{}", fmt::join(report.lines, "\n"));
    EXPECT_FALSE(fuse(fused, nullptr, {}, device).changed);
  }
}

TEST(Fusion, WhatIsNoNarrowerThanItsOperandIsNotStored) {
  const ir::Graph graph = parse_body(dropped("i32"));
  const ir::Graph fused = fuse(graph).graph;
  tests::expect_same_results(graph, fused);
  EXPECT_EQ(stored_by_loops(fused), "f32[4, 8, 8, 8], f32[4, 8, 8]");
}

/// Sines and cosines beside one another, and `more`.
std::string waves(const std::string& more) {
  return R"(
    %0 = input {name = "t", dtype = f32, shape = [4, 8]} : f32[4, 8]
    %1 = cos %0 : f32[4, 8]
    %2 = sin %0 : f32[4, 8]
    %3 = concat %1, %2 {axis = 1} : f32[4, 16]
    output "y" = %3)" +
         more;
}

TEST(Fusion, WhatOnlyAConcatenationReadsIsMadeInItsPlace) {
  const ir::Graph graph = parse_body(waves("").c_str());
  FusionReport report;
  const ir::Graph fused = fuse(graph, &report, {}, gpu()).graph;
  tests::expect_same_results(graph, fused);
  EXPECT_EQ(tests::kernel_count(fused), 1);
  EXPECT_EQ(report.lines[0], "joined %3 concat into the fusion of %1");
  EXPECT_FALSE(fuse(fused, nullptr, {}, gpu()).changed);
}

TEST(Fusion, WhatOthersReadTooIsConcatenatedApart) {
  const ir::Graph graph = parse_body(waves("\n    output \"z\" = %2").c_str());
  EXPECT_EQ(tests::kernel_count(fuse(graph, nullptr, {}, gpu()).graph), 2);
}

TEST(Fusion, StatisticsAreTakenWhereAnImageIsResampled) {
  for (const auto& [op, shape, side] :
       {std::tuple("upsample_nearest", "[1, 8, 8, 8]", 16), {"avg_pool", "[1, 32, 32, 8]", 16}}) {
    const std::string to = fmt::format("[1, {0}, {0}, 8]", side);
    const ir::Graph graph = parse_body(fmt::format(R"(
    %0 = input {{name = "x", dtype = f32, shape = {1}}} : f32{1}
    %1 = {0} %0 : f32{2}
    %2 = channel_moments %1 : f32[1, 2, 8], f32[1, 2, 8]
    output "y" = %1
    output "mean" = %2.0)",
                                                   op, shape, to));
    const ir::Graph fused = fuse(graph, nullptr, {}, gpu()).graph;
    tests::expect_same_results(graph, fused);
    EXPECT_EQ(tests::kernel_count(fused), 1) << op;
    EXPECT_EQ(tests::kernel_count(fuse(graph).graph), 2) << op;
  }
}

/// A normalised image, from the moments of its strips.
std::string finished(int side, int channels) {
  const int strips = (side + 15) / 16 * ((side + 7) / 8);
  return fmt::format(R"(
    %0 = input {{name = "mean", dtype = f32, shape = [2, {0}, {1}]}} : f32[2, {0}, {1}]
    %1 = input {{name = "m2", dtype = f32, shape = [2, {0}, {1}]}} : f32[2, {0}, {1}]
    %2 = input {{name = "x", dtype = f32, shape = [2, {2}, {2}, {1}]}} : f32[2, {2}, {2}, {1}]
    %3 = group_finish %0, %1 {{groups = 4, eps = 1e-05, height = {2}, width = {2}}} : f32[2, {1}], f32[2, {1}]
    %4 = broadcast %3.0 {{shape = [2, {2}, {2}, {1}], dims = [0, 3]}} : f32[2, {2}, {2}, {1}]
    %5 = sub %2, %4 : f32[2, {2}, {2}, {1}]
    %6 = broadcast %3.1 {{shape = [2, {2}, {2}, {1}], dims = [0, 3]}} : f32[2, {2}, {2}, {1}]
    %7 = mul %5, %6 : f32[2, {2}, {2}, {1}]
    output "y" = %7)",
                     strips, channels, side);
}

TEST(Fusion, ALoopFinishesAnImagesFewPartialResults) {
  const auto kernels = [](const std::string& text, const ir::DeviceSpec& device) {
    const ir::Graph graph = parse_body(text);
    const ir::Graph fused = fuse(graph, nullptr, {}, device).graph;
    tests::expect_same_results(graph, fused);
    EXPECT_FALSE(fuse(fused, nullptr, {}, device).changed);
    return tests::kernel_count(fused);
  };
  const std::string few = finished(8, 32);
  EXPECT_EQ(kernels(few, gpu()), 1);
  EXPECT_EQ(kernels(few + "\n output \"rstd\" = %3.1", gpu()), 1) << "it is one more result";
  EXPECT_EQ(kernels(few + "\n %8 = reduce_sum %7 {axes = [1, 2]} : f32[2, 32]\n output \"sum\" = %8", gpu()), 1)
      << "an image has blocks of its own";
  EXPECT_EQ(kernels(finished(64, 64), gpu()), 1) << "its blocks have much to do";
  EXPECT_EQ(kernels(finished(128, 32), gpu()), 2) << "many strips, which every block would read";
  EXPECT_EQ(kernels(few, {}), 2);
}

/// x + what its channels' groups share, read as [images, groups, row].
std::string shared_rows(int side, int groups, const std::string& more = "") {
  return fmt::format(R"(
    %0 = input {{name = "s", dtype = f32, shape = [2, {1}, 4]}} : f32[2, {1}, 4]
    %1 = input {{name = "x", dtype = f32, shape = [2, {0}, {0}, {2}]}} : f32[2, {0}, {0}, {2}]
    %2 = reduce_sum %0 {{axes = [2]}} : f32[2, {1}]
    %3 = broadcast %2 {{shape = [2, {1}, 4], dims = [0, 1]}} : f32[2, {1}, 4]
    %4 = mul %0, %3 : f32[2, {1}, 4]
    %5 = reshape %4 {{shape = [2, {2}]}} : f32[2, {2}]
    %6 = broadcast %5 {{shape = [2, {0}, {0}, {2}], dims = [0, 3]}} : f32[2, {0}, {0}, {2}]
    %7 = add %1, %6 : f32[2, {0}, {0}, {2}]
    output "y" = %7)",
                     side, groups, 4 * groups) +
         more;
}

TEST(Fusion, ALoopComputesAnImagesShortRows) {
  const auto kernels = [](const std::string& text, const ir::DeviceSpec& device) {
    const ir::Graph graph = parse_body(text);
    const ir::Graph fused = fuse(graph, nullptr, {}, device).graph;
    tests::expect_same_results(graph, fused);
    EXPECT_FALSE(fuse(fused, nullptr, {}, device).changed);
    return tests::kernel_count(fused);
  };
  const std::string sum = "\n %8 = reduce_sum %7 {axes = [0, 1, 2]} : f32[32]\n output \"sum\" = %8";
  EXPECT_EQ(kernels(shared_rows(8, 8), gpu()), 1);
  EXPECT_EQ(kernels(shared_rows(8, 8, sum), gpu()), 1);
  EXPECT_EQ(kernels(shared_rows(4, 8, sum), gpu()), 2) << "images share blocks";
  EXPECT_EQ(kernels(shared_rows(8, 8, "\n output \"rows\" = %4"), gpu()), 1) << "they are one more result";
  EXPECT_EQ(kernels(shared_rows(8, 4096), gpu()), 2) << "more than a block reads in its loop";
  EXPECT_EQ(kernels(shared_rows(8, 8), {}), 2);
}

/// x = x w + the sum so far, some times.
ir::Graph products(int count) {
  std::string text = R"(
    %0 = input {name = "w", dtype = f32, shape = [16, 16]} : f32[16, 16])";
  std::string sum;
  int id = 1;
  for (int i = 0; i < count; ++i) {
    text += fmt::format("\n    %{0} = input {{name = \"x{1}\", dtype = f32, shape = [4, 16]}} : f32[4, 16]", id++, i);
    text +=
        fmt::format("\n    %{} = matmul %{}, %0 {{transpose_a = false, transpose_b = false}} : f32[4, 16]", id, id - 1);
    std::string product = fmt::format("%{}", id++);
    if (!sum.empty()) {
      text += fmt::format("\n    %{} = add {}, {} : f32[4, 16]", id, sum, product);
      product = fmt::format("%{}", id++);
    }
    sum = product;
  }
  return parse_body(text + "\n    output \"y\" = " + sum);
}

TEST(Fusion, ManySmallProductsDoNotWaitForOneAnother) {
  const ir::Graph many = products(5), few = products(3);
  const ir::Graph fused = fuse(many, nullptr, {}, gpu()).graph;
  tests::expect_same_results(many, fused);
  EXPECT_EQ(tests::kernel_count(fused), 6);  // The products, which can be one launch, and their sum.
  EXPECT_EQ(tests::kernel_count(fuse(few, nullptr, {}, gpu()).graph), 3);
  EXPECT_EQ(tests::kernel_count(fuse(many).graph), 5);
}

TEST(Fusion, IsIdempotent) {
  for (const ir::Graph& graph : {canonical(tests::norm_block(2, 8, 8, 8, 2)), tests::adam(64)}) {
    const ir::Graph once = fuse(graph).graph;
    EXPECT_FALSE(fuse(once).changed);
  }
}

TEST(Fusion, FuelBoundsTheFusions) {
  const ir::Graph graph = canonical(tests::norm_block(2, 8, 8, 8, 2));
  EXPECT_FALSE(fuse(graph, nullptr, Fuel(0)).changed);
  int before = tests::kernel_count(graph);
  for (int fuel = 1; fuel < 20; ++fuel) {
    const ir::Graph fused = fuse(graph, nullptr, Fuel(fuel)).graph;
    const int now = tests::kernel_count(fused);
    EXPECT_LE(now, before) << fuel;
    before = now;
    if (fuel % 6 == 1) tests::expect_same_results(graph, fused);
  }
}

}  // namespace
}  // namespace difuse::passes
