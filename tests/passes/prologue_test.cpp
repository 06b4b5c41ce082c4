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
  EXPECT_NE(prologue_lines(report).find(": no conv_wgrad; site "), std::string::npos) << prologue_lines(report);
}

/// The filter's gradient reads what the loop of the norm's gradient makes beside it, and comes after that.
TEST(PrologueGolden, ALoopThatReadsTheSameMakesItForOthers) {
  const ir::Graph graph = parse_body(normalised(2, 4, 8) + R"(
    %12 = cast %11 {dtype = bf16} : bf16[2, 4, 4, 8]
    %13 = conv_wgrad %10, %12 {stride = 1, pad = 1, r = 3, s = 3} : f32[8, 3, 3, 8]
    %14 = conv_dgrad %12, %3 {stride = 1, pad = 1, height = 4, width = 4} : f32[2, 4, 4, 8]
    %15 = reduce_max %14 {axes = [1, 2]} : f32[2, 8]
    %16 = broadcast %15 {shape = [2, 4, 4, 8], dims = [0, 3]} : f32[2, 4, 4, 8]
    %17 = mul %4, %16 : f32[2, 4, 4, 8]
    output "dw" = %13
    output "dx" = %17)");
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
    %13 = conv_wgrad %0, %10 {stride = 1, pad = 1, r = 3, s = 3} : f32[8, 3, 3, 8]
    output "y" = %11
    output "dx" = %12
    output "dw" = %13)")
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

/// The prologue's measured price: two columns of tiles share what is transformed, and three do for twice the time.
TEST(Prologue, TheCostModelGoesByColumnsOfTiles) {
  const auto computed = [](int64_t batch, int64_t channels, const FusionChoices& choices, Prologues prologues) {
    FusionSettings s = settings(prologues);
    s.choices = choices;
    FusionReport report;
    Fuel fuel;
    PassContext context{gpu(), fuel};
    fuse_clusters(parse_body(normalised(batch, 64, channels) + "output \"y\" = %11"), context, &report, s);
    const std::string line = prologue_lines(report);
    EXPECT_TRUE(line.starts_with("computed") || line.starts_with("refused")) << line;
    return std::pair(line.starts_with("computed"), line);
  };
  EXPECT_TRUE(computed(128, 64, {}, Prologues::automatic).first);
  EXPECT_TRUE(computed(32, 128, {}, Prologues::automatic).first);
  const auto [taken, line] = computed(32, 192, {}, Prologues::automatic);
  EXPECT_FALSE(taken) << line;
  EXPECT_NE(line.find("it would take longer"), std::string::npos) << line;
  EXPECT_TRUE(computed(32, 192, {}, Prologues::always).first);
  // What was measured comes before what is estimated, and before `always`.
  const std::string site = line.substr(line.find("site ") + 5, line.find('\n') - line.find("site ") - 5);
  EXPECT_TRUE(computed(32, 192, {{{site, true}}}, Prologues::automatic).first);
  const auto [again, why] = computed(32, 192, {{{site, false}}}, Prologues::always);
  EXPECT_FALSE(again) << why;
  EXPECT_NE(why.find("a recorded choice"), std::string::npos) << why;
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
