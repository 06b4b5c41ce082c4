// Contractions that compute the image that they read.
#include "passes/fusion/prologue.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ir/device_spec.h"
#include "ir/op.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/fusion/cost.h"
#include "passes/fusion/grow.h"
#include "passes/in_place.h"
#include "tests/support/golden.h"
#include "tests/support/graphs/graphs.h"

namespace difuse::passes {
namespace {

ir::Graph parse_body(const std::string& text) { return ir::parse("graph g {\n" + text + "\n}\n"); }

const ir::DeviceSpec& gpu() { return *ir::find_device_spec("h100"); }

/// A device whose kernels compute every body but one that holds one of these ops.
FusionSettings settings(Prologues prologues, std::vector<ir::Op> unable = {}) {
  FusionSettings s;
  s.prologues = prologues;
  s.prologue_limits = [unable](const ir::Graph& body) -> std::string {
    for (int id = 0; id < body.size(); ++id) {
      if (std::ranges::count(unable, body.node(id).op)) return fmt::format("no {}", ir::to_string(body.node(id).op));
    }
    return {};
  };
  return s;
}

ir::Graph fuse(const ir::Graph& graph, const FusionSettings& settings, FusionReport* report = nullptr, Fuel fuel = {}) {
  PassContext context{gpu(), fuel};
  PassResult result = fuse_clusters(graph, context, report, settings);
  ir::verify(result.graph);
  EXPECT_EQ(result.changed, ir::print(result.graph) != ir::print(graph));
  tests::expect_same_results(graph, result.graph);
  EXPECT_FALSE(fuse_clusters(result.graph, context, nullptr, settings).changed);
  return std::move(result.graph);
}

std::string prologue_lines(const FusionReport& report) {
  std::string text;
  for (const std::string& line : report.lines) {
    if (line.find("prologue") != std::string::npos) text += line + "\n";
  }
  return text;
}

ir::Graph expect_fused(const ir::Graph& graph, const std::string& golden, const FusionSettings& settings) {
  FusionReport report;
  ir::Graph fused = fuse(graph, settings, &report);
  std::string text;
  for (const std::string& line : report.lines) text += "# " + line + "\n";
  tests::expect_golden("passes/golden/" + golden + ".ir", text + ir::print(fused));
  return fused;
}

/// An image, normalised per image and channel, shifted per channel, SiLU, rounded: what a convolution reads.
std::string normalised(int64_t batch, int64_t side, int64_t channels) {
  return fmt::format(R"(
    %0 = input {{name = "x", dtype = bf16, shape = [{0}, {1}, {1}, {2}]}} : bf16[{0}, {1}, {1}, {2}]
    %1 = input {{name = "mean", dtype = f32, shape = [{0}, {2}]}} : f32[{0}, {2}]
    %2 = input {{name = "shift", dtype = f32, shape = [{2}]}} : f32[{2}]
    %3 = input {{name = "w", dtype = bf16, shape = [{2}, 3, 3, {2}]}} : bf16[{2}, 3, 3, {2}]
    %4 = cast %0 {{dtype = f32}} : f32[{0}, {1}, {1}, {2}]
    %5 = broadcast %1 {{shape = [{0}, {1}, {1}, {2}], dims = [0, 3]}} : f32[{0}, {1}, {1}, {2}]
    %6 = sub %4, %5 : f32[{0}, {1}, {1}, {2}]
    %7 = broadcast %2 {{shape = [{0}, {1}, {1}, {2}], dims = [3]}} : f32[{0}, {1}, {1}, {2}]
    %8 = add %6, %7 : f32[{0}, {1}, {1}, {2}]
    %9 = silu %8 : f32[{0}, {1}, {1}, {2}]
    %10 = cast %9 {{dtype = bf16}} : bf16[{0}, {1}, {1}, {2}]
    %11 = conv_fprop %10, %3 {{stride = 1, pad = 1}} : f32[{0}, {1}, {1}, {2}]
)",
                     batch, side, channels);
}

const std::string kStored = R"(
    %12 = input {name = "bias", dtype = f32, shape = [8]} : f32[8]
    %13 = broadcast %12 {shape = [2, 4, 4, 8], dims = [3]} : f32[2, 4, 4, 8]
    %14 = add %11, %13 : f32[2, 4, 4, 8]
    %15 = cast %14 {dtype = bf16} : bf16[2, 4, 4, 8]
    output "y" = %15)";

const std::string kFilterGradient = R"(
    %12 = input {name = "dy", dtype = bf16, shape = [2, 4, 4, 8]} : bf16[2, 4, 4, 8]
    %13 = conv_wgrad %10, %12 {stride = 1, pad = 1, r = 3, s = 3} : f32[8, 3, 3, 8]
    output "y" = %11
    output "dw" = %13)";

/// With the gradients of the filter and, through a maximum, of the image, in a loop that reads the image.
std::string with_gradients(int64_t batch, int64_t side, int64_t channels) {
  return normalised(batch, side, channels) + fmt::format(R"(
    %12 = cast %11 {{dtype = bf16}} : bf16[{0}, {1}, {1}, {2}]
    %13 = conv_wgrad %10, %12 {{stride = 1, pad = 1, r = 3, s = 3}} : f32[{2}, 3, 3, {2}]
    %14 = conv_dgrad %12, %3 {{stride = 1, pad = 1, height = {1}, width = {1}}} : f32[{0}, {1}, {1}, {2}]
    %15 = reduce_max %14 {{axes = [1, 2]}} : f32[{0}, {2}]
    %16 = broadcast %15 {{shape = [{0}, {1}, {1}, {2}], dims = [0, 3]}} : f32[{0}, {1}, {1}, {2}]
    %17 = mul %4, %16 : f32[{0}, {1}, {1}, {2}]
    output "dw" = %13
    output "dx" = %17)",
                                                         batch, side, channels);
}

// Names with Golden are run by ./dev update-golden.

TEST(PrologueGolden, AConvolutionComputesItsImage) {
  const ir::Graph graph = parse_body(normalised(2, 4, 8) + kStored);
  EXPECT_EQ(tests::kernel_count(expect_fused(graph, "conv_prologue", settings(Prologues::always))), 1);
  EXPECT_EQ(tests::kernel_count(fuse(graph, settings(Prologues::never))), 2);
  FusionSettings unable;
  unable.prologues = Prologues::always;
  EXPECT_EQ(ir::print(fuse(graph, unable)), ir::print(fuse(graph, settings(Prologues::never))));
}

TEST(PrologueGolden, ConvolutionAndFilterGradientComputeItEach) {
  const ir::Graph graph = parse_body(normalised(2, 4, 8) + kFilterGradient);
  EXPECT_EQ(tests::kernel_count(expect_fused(graph, "shared_prologue", settings(Prologues::always))), 2);
  // Where one of them cannot, all read what is in memory.
  FusionReport report;
  EXPECT_EQ(tests::kernel_count(fuse(graph, settings(Prologues::always, {ir::Op::conv_wgrad}), &report)), 3);
  EXPECT_NE(prologue_lines(report).find(": no conv_wgrad, and no loop makes it for %13 conv_wgrad; site "),
            std::string::npos)
      << prologue_lines(report);
}

/// The filter's gradient reads what the loop of the norm's gradient makes beside it, and comes after that.
TEST(PrologueGolden, ALoopThatReadsTheSameMakesItForOthers) {
  const ir::Graph graph = parse_body(with_gradients(2, 4, 8));
  const FusionSettings without_wgrad = settings(Prologues::always, {ir::Op::conv_wgrad});
  EXPECT_EQ(tests::kernel_count(fuse(graph, settings(Prologues::never))), 6);
  EXPECT_EQ(tests::kernel_count(expect_fused(graph, "prologue_beside", without_wgrad)), 5);
  EXPECT_EQ(tests::kernel_count(fuse(graph, settings(Prologues::always))), 5);
}

TEST(Prologue, WhatOthersReadStaysInMemory) {
  const auto refusal = [](const std::string& more) {
    FusionReport report;
    const ir::Graph graph = parse_body(normalised(2, 4, 8) + more);
    EXPECT_EQ(ir::print(fuse(graph, settings(Prologues::always), &report)),
              ir::print(fuse(graph, settings(Prologues::never))));
    return prologue_lines(report);
  };
  EXPECT_NE(refusal("output \"y\" = %11\n output \"x\" = %10").find("it is needed in memory"), std::string::npos);
  EXPECT_NE(refusal(R"(
    %12 = conv_dgrad %10, %3 {stride = 1, pad = 1, height = 4, width = 4} : f32[2, 4, 4, 8]
    %13 = conv_fprop %0, %10 {stride = 1, pad = 1} : f32[2, 3, 3, 2]
    output "y" = %11
    output "dx" = %12
    output "z" = %13)")
                .find("%13 reads it otherwise"),
            std::string::npos);
  // It is added to the convolution's own result.
  EXPECT_NE(refusal(R"(
    %12 = cast %10 {dtype = f32} : f32[2, 4, 4, 8]
    %13 = add %11, %12 : f32[2, 4, 4, 8]
    output "y" = %13)")
                .find("computes it, too"),
            std::string::npos);
  EXPECT_EQ(refusal("output \"x\" = %10"), "") << "no convolution reads it";
}

/// A norm's gradient: of an image, of what reaches it, and of sums over groups of channels, which are finished here.
/// Its readers are the gradients of the convolution before it; others read its own sums.
const char* const kNormGradient = R"(
    %0 = input {name = "x", dtype = bf16, shape = [2, 8, 8, 32]} : bf16[2, 8, 8, 32]
    %1 = input {name = "g", dtype = bf16, shape = [2, 8, 8, 32]} : bf16[2, 8, 8, 32]
    %2 = input {name = "mean", dtype = f32, shape = [2, 32]} : f32[2, 32]
    %3 = input {name = "sums", dtype = f32, shape = [2, 8, 4]} : f32[2, 8, 4]
    %4 = input {name = "w", dtype = bf16, shape = [32, 3, 3, 16]} : bf16[32, 3, 3, 16]
    %5 = input {name = "image", dtype = bf16, shape = [2, 8, 8, 16]} : bf16[2, 8, 8, 16]
    %6 = cast %0 {dtype = f32} : f32[2, 8, 8, 32]
    %7 = broadcast %2 {shape = [2, 8, 8, 32], dims = [0, 3]} : f32[2, 8, 8, 32]
    %8 = sub %6, %7 : f32[2, 8, 8, 32]
    %9 = reduce_sum %3 {axes = [2]} : f32[2, 8]
    %10 = broadcast %9 {shape = [2, 8, 4], dims = [0, 1]} : f32[2, 8, 4]
    %11 = mul %10, %3 : f32[2, 8, 4]
    %12 = reshape %11 {shape = [2, 32]} : f32[2, 32]
    %13 = broadcast %12 {shape = [2, 8, 8, 32], dims = [0, 3]} : f32[2, 8, 8, 32]
    %14 = mul %8, %13 : f32[2, 8, 8, 32]
    %15 = cast %1 {dtype = f32} : f32[2, 8, 8, 32]
    %16 = add %15, %14 : f32[2, 8, 8, 32]
    %17 = cast %16 {dtype = bf16} : bf16[2, 8, 8, 32]
    %18 = cast %17 {dtype = f32} : f32[2, 8, 8, 32]
    %19 = reduce_sum %18 {axes = [1, 2]} : f32[2, 32]
    %20 = conv_dgrad %17, %4 {stride = 1, pad = 1, height = 8, width = 8} : f32[2, 8, 8, 16]
    %21 = conv_wgrad %5, %17 {stride = 1, pad = 1, r = 3, s = 3} : f32[32, 3, 3, 16]
    output "dbias" = %19
    output "dimage" = %20
    output "dw" = %21)";

TEST(PrologueGolden, ANormsGradientIsComputedByBothGradients) {
  const ir::Graph graph = parse_body(kNormGradient);
  EXPECT_EQ(tests::kernel_count(expect_fused(graph, "norm_gradient_prologue", settings(Prologues::always))), 2);
  const ir::Graph stored = fuse(graph, settings(Prologues::never));
  EXPECT_EQ(tests::kernel_count(stored), 3);
  // One that cannot finish the groups' sums, or add those of the gradient, cannot spare the loop.
  for (const ir::Op unable : {ir::Op::reshape, ir::Op::reduce_sum, ir::Op::conv_dgrad, ir::Op::conv_wgrad}) {
    EXPECT_EQ(ir::print(fuse(graph, settings(Prologues::always, {unable}))), ir::print(stored))
        << ir::to_string(unable);
  }
  FusionReport report;
  fuse(graph, settings(Prologues::always, {ir::Op::reshape}), &report);
  EXPECT_NE(prologue_lines(report).find(": no kernel of its readers finishes its statistics; site "), std::string::npos)
      << prologue_lines(report);
  // Nor may it be needed elsewhere.
  const ir::Graph read = parse_body(std::string(kNormGradient) + "\n    output \"dx\" = %17");
  EXPECT_EQ(ir::print(fuse(read, settings(Prologues::always))), ir::print(fuse(read, settings(Prologues::never))));
}

const char* const kConcatenated = R"(
    %0 = input {name = "a", dtype = bf16, shape = [2, 4, 4, 8]} : bf16[2, 4, 4, 8]
    %1 = input {name = "b", dtype = bf16, shape = [2, 4, 4, 16]} : bf16[2, 4, 4, 16]
    %2 = input {name = "w", dtype = bf16, shape = [6, 3, 3, 24]} : bf16[6, 3, 3, 24]
    %3 = input {name = "skip", dtype = bf16, shape = [6, 1, 1, 24]} : bf16[6, 1, 1, 24]
    %4 = concat %0, %1 {axis = 3} : bf16[2, 4, 4, 24]
    %5 = cast %4 {dtype = f32} : f32[2, 4, 4, 24]
    %6 = silu %5 : f32[2, 4, 4, 24]
    %7 = cast %6 {dtype = bf16} : bf16[2, 4, 4, 24]
    %8 = conv_fprop %7, %2 {stride = 1, pad = 1} : f32[2, 4, 4, 6]
    %9 = conv_fprop %4, %3 {stride = 1, pad = 0} : f32[2, 4, 4, 6]
    output "y" = %8
    output "z" = %9)";

TEST(PrologueGolden, AConcatenationIsReadFromItsParts) {
  const ir::Graph graph = parse_body(kConcatenated);
  EXPECT_EQ(tests::kernel_count(expect_fused(graph, "concat_prologue", settings(Prologues::always))), 2);
  // Who cannot read parts reads the concatenation.
  EXPECT_EQ(tests::kernel_count(fuse(graph, settings(Prologues::always, {ir::Op::concat}))), 3);
}

TEST(Prologue, StatisticsAreFinishedInItWhereTheDeviceCan) {
  const ir::Graph graph = parse_body(R"(
    %0 = input {name = "x", dtype = f32, shape = [2, 8, 8, 32]} : f32[2, 8, 8, 32]
    %1 = input {name = "mean", dtype = f32, shape = [2, 1, 32]} : f32[2, 1, 32]
    %2 = input {name = "m2", dtype = f32, shape = [2, 1, 32]} : f32[2, 1, 32]
    %3 = input {name = "w", dtype = f32, shape = [8, 3, 3, 32]} : f32[8, 3, 3, 32]
    %4 = group_finish %1, %2 {groups = 8, eps = 1e-05, height = 8, width = 8} : f32[2, 32], f32[2, 32]
    %5 = broadcast %4.0 {shape = [2, 8, 8, 32], dims = [0, 3]} : f32[2, 8, 8, 32]
    %6 = sub %0, %5 : f32[2, 8, 8, 32]
    %7 = broadcast %4.1 {shape = [2, 8, 8, 32], dims = [0, 3]} : f32[2, 8, 8, 32]
    %8 = mul %6, %7 : f32[2, 8, 8, 32]
    %9 = conv_fprop %8, %3 {stride = 1, pad = 1} : f32[2, 8, 8, 8]
    output "y" = %9)");
  EXPECT_EQ(tests::kernel_count(fuse(graph, settings(Prologues::never))), 2);
  EXPECT_EQ(tests::kernel_count(fuse(graph, settings(Prologues::always))), 1);
  FusionReport report;
  EXPECT_EQ(tests::kernel_count(fuse(graph, settings(Prologues::always, {ir::Op::group_finish}), &report)), 2);
  EXPECT_NE(prologue_lines(report).find(" and 0 kernels less"), std::string::npos) << prologue_lines(report);
}

/// Of a large image they have a kernel of their own, which the convolution takes, too; it stores them for others, but
/// not for the loop that would make the image, which is then there anyway.
TEST(Prologue, StatisticsOfALargeImageComeAlong) {
  const std::string image = R"(
    %0 = input {name = "x", dtype = f32, shape = [2, 64, 64, 64]} : f32[2, 64, 64, 64]
    %1 = input {name = "mean", dtype = f32, shape = [2, 32, 64]} : f32[2, 32, 64]
    %2 = input {name = "m2", dtype = f32, shape = [2, 32, 64]} : f32[2, 32, 64]
    %3 = input {name = "w", dtype = f32, shape = [8, 3, 3, 64]} : f32[8, 3, 3, 64]
    %4 = group_finish %1, %2 {groups = 8, eps = 1e-05, height = 64, width = 64} : f32[2, 64], f32[2, 64]
    %5 = broadcast %4.0 {shape = [2, 64, 64, 64], dims = [0, 3]} : f32[2, 64, 64, 64]
    %6 = sub %0, %5 : f32[2, 64, 64, 64]
    %7 = broadcast %4.1 {shape = [2, 64, 64, 64], dims = [0, 3]} : f32[2, 64, 64, 64]
    %8 = mul %6, %7 : f32[2, 64, 64, 64]
    %9 = conv_fprop %8, %3 {stride = 1, pad = 1} : f32[2, 64, 64, 8]
    output "y" = %9)";
  const std::string loop = R"(
    %10 = mul %0, %7 : f32[2, 64, 64, 64]
    output "z" = %10)";
  struct Made {
    int kernels;
    PrologueSite site;
    std::string line;
  };
  const auto made = [](const std::string& text, std::vector<ir::Op> unable) {
    FusionReport report;
    const int kernels =
        tests::kernel_count(fuse(parse_body(text), settings(Prologues::always, std::move(unable)), &report));
    return Made{kernels, report.prologues.at(0), prologue_lines(report)};
  };
  const Made with = made(image, {}), without = made(image, {ir::Op::group_finish});
  EXPECT_EQ(with.kernels, 1);
  EXPECT_NE(with.line.find(" and 2 kernels less"), std::string::npos) << with.line;
  EXPECT_EQ(without.kernels, 2);
  // Who finishes them is no part of what is decided.
  EXPECT_EQ(with.site.site, "sub_mul f32[64, 64, 64] -> f32[64, 64, 64], conv_fprop f32[8, 3, 3, 64]");
  EXPECT_EQ(without.site.site, with.site.site);
  EXPECT_EQ(with.site.price, without.site.price);
  const std::string output = "\n output \"rstd\" = %4.1";
  const Made stored = made(image + output, {});
  EXPECT_EQ(stored.kernels, 1);
  EXPECT_NE(stored.line.find("statistics in that of %9 conv_fprop: 4194304 bytes and 2 kernels less"),
            std::string::npos)
      << stored.line;
  EXPECT_EQ(made(image + output, {ir::Op::group_finish}).kernels, 2);
  EXPECT_EQ(made(image + loop, {}).kernels, made(image + loop, {ir::Op::group_finish}).kernels);
}

const char* const kFinished = R"(
    %0 = input {name = "x", dtype = bf16, shape = [2, 8, 8, 32]} : bf16[2, 8, 8, 32]
    %1 = input {name = "mean", dtype = f32, shape = [2, 1, 32]} : f32[2, 1, 32]
    %2 = input {name = "m2", dtype = f32, shape = [2, 1, 32]} : f32[2, 1, 32]
    %3 = input {name = "w", dtype = bf16, shape = [8, 3, 3, 32]} : bf16[8, 3, 3, 32]
    %4 = input {name = "dy", dtype = bf16, shape = [2, 8, 8, 8]} : bf16[2, 8, 8, 8]
    %5 = group_finish %1, %2 {groups = 8, eps = 1e-05, height = 8, width = 8} : f32[2, 32], f32[2, 32]
    %6 = cast %0 {dtype = f32} : f32[2, 8, 8, 32]
    %7 = broadcast %5.0 {shape = [2, 8, 8, 32], dims = [0, 3]} : f32[2, 8, 8, 32]
    %8 = sub %6, %7 : f32[2, 8, 8, 32]
    %9 = broadcast %5.1 {shape = [2, 8, 8, 32], dims = [0, 3]} : f32[2, 8, 8, 32]
    %10 = mul %8, %9 : f32[2, 8, 8, 32]
    %11 = cast %10 {dtype = bf16} : bf16[2, 8, 8, 32]
    %12 = conv_fprop %11, %3 {stride = 1, pad = 1} : f32[2, 8, 8, 8]
    %13 = conv_wgrad %11, %4 {stride = 1, pad = 1, r = 3, s = 3} : f32[8, 3, 3, 32]
    %14 = mul %5.1, %5.1 : f32[2, 32]
)";

// The convolution's kernel finishes the statistics, and stores them for the gradient's and for all who read them.
TEST(PrologueGolden, OneOfTheReadersFinishesStatisticsForAll) {
  FusionSettings able = settings(Prologues::always);
  able.prologue_limits = [](const ir::Graph& body) -> std::string {
    const auto has = [&](ir::Op op) {
      for (int id = 0; id < body.size(); ++id) {
        if (body.node(id).op == op) return true;
      }
      return false;
    };
    return has(ir::Op::conv_wgrad) && has(ir::Op::group_finish) ? "it finishes no statistics" : "";
  };
  const auto graph = [](const std::string& outputs) { return parse_body(kFinished + outputs); };
  const ir::Graph all = graph("output \"y\" = %12\n output \"dw\" = %13\n output \"v\" = %14");
  EXPECT_EQ(tests::kernel_count(expect_fused(all, "finished_prologue", able)), 3);
  EXPECT_EQ(tests::kernel_count(fuse(all, settings(Prologues::never))), 4);
  // Not where the convolution itself waits for somebody who reads them.
  FusionReport report;
  const ir::Graph late = graph(R"(
    %15 = reduce_sum %14 {axes = [0]} : f32[32]
    %16 = broadcast %15 {shape = [8, 3, 3, 32], dims = [3]} : f32[8, 3, 3, 32]
    %17 = cast %16 {dtype = bf16} : bf16[8, 3, 3, 32]
    %18 = conv_fprop %11, %17 {stride = 1, pad = 1} : f32[2, 8, 8, 8]
    output "y" = %18
    output "dw" = %13)");
  fuse(late, able, &report);
  EXPECT_NE(prologue_lines(report).find("computed %11"), std::string::npos) << prologue_lines(report);
  EXPECT_EQ(prologue_lines(report).find("statistics in"), std::string::npos) << prologue_lines(report);
}

/// What was decided about the one image of a graph that may be computed on the way.
struct Decided {
  bool computed;
  std::string line;
  PrologueSite site;
};

Decided decide(int64_t batch, int64_t side, int64_t channels, FusionSettings s) {
  FusionReport report;
  Fuel fuel;
  PassContext context{gpu(), fuel};
  fuse_clusters(parse_body(normalised(batch, side, channels) + "output \"y\" = %11"), context, &report, s);
  const std::string line = prologue_lines(report);
  EXPECT_EQ(report.prologues.size(), 1u) << line;
  EXPECT_EQ(report.prologues.at(0).computed, line.starts_with("computed")) << line;
  return {line.starts_with("computed"), line, report.prologues.at(0)};
}

/// The prologue's measured price: two columns of tiles share what is transformed, three do for twice the time, and an
/// image of few pixels has nothing to hide the first tile behind.
TEST(Prologue, TheCostModelGoesByColumnsOfTilesAndByPixels) {
  EXPECT_TRUE(decide(32, 64, 64, settings(Prologues::automatic)).computed);
  const Decided wide = decide(32, 64, 192, settings(Prologues::automatic)),
                always = decide(32, 64, 192, settings(Prologues::always));
  EXPECT_FALSE(wide.computed);
  EXPECT_FALSE(wide.site.estimated);
  EXPECT_NE(wide.line.find("it would take longer"), std::string::npos) << wide.line;
  EXPECT_TRUE(always.computed);
  EXPECT_FALSE(always.site.estimated) << "what the model alone decides";
  EXPECT_EQ(decide(32, 22, 64, settings(Prologues::automatic)).computed, false) << "484 pixels";
  EXPECT_EQ(decide(32, 23, 64, settings(Prologues::automatic)).computed, true) << "529 pixels";
  // Chunks of channels and strips of pixels are whole.
  EXPECT_DOUBLE_EQ(decide(32, 60, 40, settings(Prologues::automatic)).site.price,
                   decide(32, 64, 64, settings(Prologues::automatic)).site.price);
}

/// As measured on an H200, which has an H100's processors, at 32 images: the convolution with a prologue takes so much
/// longer than without.
TEST(Prologue, TheCostModelIsNearWhatWasMeasured) {
  struct Row {
    int64_t side, channels;
    double microseconds;
  };
  for (const Row& row : {Row{64, 64, 6.6}, Row{32, 128, 3.6}}) {
    const PrologueSite site = decide(32, row.side, row.channels, settings(Prologues::automatic)).site;
    EXPECT_NEAR(site.price * 1e6, row.microseconds, 0.25 * row.microseconds) << row.side;
  }
}

/// What the backward pass makes again anyway, where memory is short, is no cost of not storing it before.
TEST(Prologue, AnImageThatIsMadeAgainAnywayIsNoCost) {
  const auto images_spared = [](int64_t side, int64_t channels) {
    FusionReport report;
    Fuel fuel;
    PassContext context{gpu(), fuel};
    fuse_clusters(parse_body(with_gradients(2, side, channels)), context, &report,
                  settings(Prologues::always, {ir::Op::conv_wgrad}));
    EXPECT_EQ(report.prologues.size(), 1u);
    const double image = static_cast<double>(2 * side * side * channels * ir::size_of(ir::DType::bf16));
    return report.prologues.at(0).spared * kCopyShare * gpu().bandwidth / image;
  };
  EXPECT_NEAR(images_spared(64, 64), 1, 1e-6) << "all are kept: it is read once less";
  EXPECT_NEAR(images_spared(128, 64), 2, 1e-6) << "nor is it written";
}

/// No batch changes what is expected, nor what a site is called.
TEST(Prologue, TheCostModelGoesByOneImage) {
  for (const int64_t side : {16, 32, 64}) {
    const Decided one = decide(1, side, 64, settings(Prologues::automatic));
    for (const int64_t batch : {2, 32, 200}) {
      const Decided many = decide(batch, side, 64, settings(Prologues::automatic));
      EXPECT_EQ(many.computed, one.computed) << side << " " << batch;
      EXPECT_EQ(many.site.site, one.site.site);
      EXPECT_EQ(many.site.batch, batch);
      EXPECT_NEAR(many.site.spared, static_cast<double>(batch) * one.site.spared, 1e-12);
      EXPECT_NEAR(many.site.price, static_cast<double>(batch) * one.site.price, 1e-12);
    }
  }
}

/// What was measured comes before what is estimated, and before `always`; at the batch that is nearest to the graph's.
TEST(Prologue, RecordedChoicesComeFirst) {
  const Decided wide = decide(32, 64, 192, settings(Prologues::automatic));
  EXPECT_EQ(wide.site.site,
            "sub_add_silu_cast bf16[64, 64, 192] -> bf16[64, 64, 192], conv_fprop bf16[192, 3, 3, 192]");
  FusionSettings s = settings(Prologues::automatic);
  s.choices.prologues = {{{wide.site.site, 32}, true}, {{wide.site.site, 4}, false}};
  EXPECT_TRUE(decide(32, 64, 192, s).computed);
  EXPECT_TRUE(decide(128, 64, 192, s).computed);
  EXPECT_FALSE(decide(2, 64, 192, s).computed);
  s.prologues = Prologues::always;
  const Decided kept = decide(4, 64, 192, s);
  EXPECT_FALSE(kept.computed);
  EXPECT_NE(kept.line.find("a recorded choice"), std::string::npos) << kept.line;
  // A site that none is recorded for.
  s.prologues = Prologues::automatic;
  EXPECT_TRUE(decide(32, 64, 64, s).computed);
  s.estimates = false;
  const Decided unknown = decide(32, 64, 64, s);
  EXPECT_FALSE(unknown.computed);
  EXPECT_TRUE(unknown.site.estimated);
  EXPECT_NE(unknown.line.find("no choice is recorded"), std::string::npos) << unknown.line;
  EXPECT_TRUE(decide(32, 64, 192, s).computed);
}

/// A convolution reads its image's neighbours after it has written.
TEST(Prologue, NoResultLiesWhereTheImageLies) {
  const ir::Graph fused = fuse(parse_body(normalised(2, 4, 8) + kStored), settings(Prologues::always));
  for (int id = 0; id < fused.size(); ++id) {
    const ir::Node& node = fused.node(id);
    if (node.op != ir::Op::fusion) continue;
    const InPlace in_place(fused, id);
    for (int i = 0; i < std::ssize(node.operands); ++i) EXPECT_FALSE(in_place.allows(i, 0)) << i;
  }
}

TEST(Prologue, FuelBoundsThem) {
  const ir::Graph graph = parse_body(normalised(2, 4, 8) + kStored);
  // Fusions of the loop and of the convolution, then the prologue.
  EXPECT_EQ(tests::kernel_count(fuse(graph, settings(Prologues::always), nullptr, Fuel(2))), 2);
  EXPECT_EQ(tests::kernel_count(fuse(graph, settings(Prologues::always), nullptr, Fuel(3))), 1);
}

}  // namespace
}  // namespace difuse::passes
