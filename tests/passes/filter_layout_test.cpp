// Which filters are turned, and which are read as they lie.
#include "passes/filter_layout.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/text.h"
#include "ir/verify.h"
#include "passes/canonicalize.h"
#include "passes/pipeline.h"
#include "tests/support/graphs/graphs.h"

namespace difuse::passes {
namespace {

using ir::DType;

PassResult apply(const ir::Graph& graph, const char* device, Fuel fuel = {}) {
  PassContext context{*ir::find_device_spec(device), fuel};
  PassResult result = set_filter_layout(graph, context);
  ir::verify(result.graph);
  EXPECT_EQ(result.changed, ir::print(result.graph) != ir::print(graph));
  return result;
}

struct Shapes {
  int64_t r = 3, pad = 1, k = 16, c = 8;
  DType dtype = DType::bf16;
  int64_t stride = 1;
};

/// As canonicalize leaves the gradient of an image.
ir::Graph gradient(const Shapes& s = {}) {
  ir::Graph graph("gradient");
  ir::Builder b(graph);
  const ir::Value dy = b.input("dy", {s.dtype, {2, 7, 6, s.k}}), w = b.input("w", {s.dtype, {s.k, s.r, s.r, s.c}});
  graph.set_output("dx", b.conv_fprop(dy, b.repack(w, ir::WeightLayout::flipped), s.stride, s.pad));
  return graph;
}

TEST(FilterLayout, OnHopperAFilterIsReadAsItLies) {
  for (const Shapes& s : {Shapes{}, {.pad = 0}, {.pad = 2}, {.r = 1, .pad = 0}}) {
    const ir::Graph before = gradient(s);
    for (const char* device : {"h100", "h200"}) {
      const PassResult result = apply(before, device);
      EXPECT_TRUE(result.changed);
      const std::string text = ir::print(result.graph);
      EXPECT_EQ(text.find("repack"), std::string::npos);
      EXPECT_NE(text.find(fmt::format("conv_dgrad %0, %1 {{stride = 1, pad = {}", s.r - 1 - s.pad)), std::string::npos)
          << text;
      EXPECT_FALSE(apply(result.graph, device).changed) << "not idempotent";
      tests::expect_same_results(before, result.graph);
    }
  }
}

TEST(FilterLayout, ElsewhereNothingChanges) {
  for (const char* device : {"a100", "l4", "b200", "rtx5090"})
    EXPECT_FALSE(apply(gradient(), device).changed) << device;
  for (const Shapes& s : {Shapes{.dtype = DType::f32},
                          {.k = 12},
                          {.c = 3},
                          {.r = 5, .pad = 2},
                          {.pad = 3},
                          {.r = 1, .pad = 1},
                          {.stride = 2}}) {
    EXPECT_FALSE(apply(gradient(s), "h100").changed) << s.r << " " << s.pad << " " << s.k << " " << s.c;
  }
}

/// dy is as high and wide as the convolution's result.
ir::Graph filter_gradient(const Shapes& s) {
  ir::Graph graph("gradient");
  ir::Builder b(graph);
  const auto out = [&](int64_t extent) { return (extent + 2 * s.pad - s.r) / s.stride + 1; };
  const ir::Value x = b.input("x", {s.dtype, {2, 7, 6, s.c}}), dy = b.input("dy", {s.dtype, {2, out(7), out(6), s.k}});
  graph.set_output("dw", b.conv_wgrad(x, dy, {.stride = s.stride, .pad = s.pad, .r = s.r, .s = s.r}));
  return graph;
}

TEST(FilterLayout, OnHopperTheGradientOfFewOutputsIsMadeTurned) {
  for (const Shapes& s :
       {Shapes{.k = 3}, {.pad = 0, .k = 1}, {.pad = 2, .k = 7, .c = 9}, {.r = 5, .pad = 1, .k = 3, .c = 4}}) {
    const ir::Graph before = filter_gradient(s);
    const PassResult result = apply(before, "h100");
    EXPECT_TRUE(result.changed);
    const std::string text = ir::print(result.graph);
    EXPECT_NE(text.find(fmt::format("conv_wgrad %1, %0 {{stride = 1, pad = {}", s.r - 1 - s.pad)), std::string::npos)
        << text;
    EXPECT_FALSE(apply(result.graph, "h100").changed) << "not idempotent";
    tests::expect_same_results(before, result.graph);
  }
}

TEST(FilterLayout, OtherFiltersGradientsStay) {
  for (const Shapes& s : {Shapes{.k = 8, .c = 16},
                          {.k = 3, .c = 3},
                          {.k = 4, .c = 3},
                          {.r = 1, .pad = 0, .k = 3},
                          {.pad = 3, .k = 3},
                          {.k = 3, .stride = 2},
                          {.k = 3, .dtype = DType::f32}}) {
    EXPECT_FALSE(apply(filter_gradient(s), "h100").changed) << s.r << " " << s.pad << " " << s.k << " " << s.c;
  }
  EXPECT_FALSE(apply(filter_gradient({.k = 3}), "a100").changed);
}

TEST(FilterLayout, SpendsFuelForEachConvolution) {
  EXPECT_FALSE(apply(gradient(), "h100", Fuel(0)).changed);
  EXPECT_TRUE(apply(gradient(), "h100", Fuel(1)).changed);
}

TEST(FilterLayout, InThePipelineTurnsNoFilterInBf16OnHopper) {
  const auto repacks = [](const char* device, Precision precision) {
    const std::string text = ir::print(run_pipeline(tests::norm_block(2, 8, 8, 8, 2), *ir::find_device_spec(device),
                                                    {.fuse = false, .precision = precision}));
    return text.find("repack") != std::string::npos;
  };
  EXPECT_FALSE(repacks("h100", Precision::bf16));
  EXPECT_TRUE(repacks("h100", Precision::tf32));
  EXPECT_TRUE(repacks("h100", Precision::f32));
  EXPECT_TRUE(repacks("a100", Precision::bf16));
}

}  // namespace
}  // namespace difuse::passes
