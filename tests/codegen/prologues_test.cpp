// Which bodies with a prologue the backends' kernels take.
#include "codegen/prologues.h"

#include <gtest/gtest.h>

#include "ir/builder.h"

namespace difuse::codegen {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Value;

struct Convolution {
  int64_t channels = 64, stride = 1;
  DType dtype = DType::bf16;
  bool is_wgrad = false, is_concatenated = false, is_finished = false;
};

/// A normalised image, SiLU and rounding before a 3x3 convolution, or before its filter's gradient.
Graph body(const Convolution& c) {
  Graph graph("body");
  Builder b(graph);
  const ir::Shape shape = {2, 16, 16, c.channels};
  Value x = b.input("0", {c.dtype, {2, 16, 16, c.is_concatenated ? c.channels / 2 : c.channels}});
  Value mean = b.input("1", {DType::f32, c.is_finished ? ir::Shape{2, 2, c.channels} : ir::Shape{2, c.channels}});
  if (c.is_finished) mean = b.group_finish({{mean, mean}}, {4, 1e-2, 16, 16}).mean;
  const Value shift = b.input("2", {DType::f32, {c.channels}});
  if (c.is_concatenated) x = b.concat({x, b.input("4", b.type(x))}, 3);
  x = b.sub(b.cast(x, DType::f32), b.broadcast_image_channels(mean, shape));
  x = b.cast(b.silu(b.add(x, b.broadcast_channels(shift, shape))), c.dtype);
  const auto other = [&](const ir::Shape& of) { return b.input("3", {c.dtype, of}); };
  if (c.is_wgrad) {
    graph.set_output("0", b.conv_wgrad(x, other({2, 16, 16, 64}), {1, 1, 3, 3}));
  } else {
    graph.set_output("0", b.cast(b.conv_fprop(x, other({64, 3, 3, c.channels}), c.stride, 1), c.dtype));
  }
  return graph;
}

bool takes(const ir::DeviceSpec& device, const Convolution& c) { return prologue_limit(body(c), device).empty(); }

TEST(PrologueLimit, HoppersEnginesTransformWhatTheyCopy) {
  const ir::DeviceSpec& hopper = *ir::find_device_spec("h100");
  EXPECT_TRUE(takes(hopper, {})) << prologue_limit(body({}), hopper);
  EXPECT_TRUE(takes(hopper, {.channels = 128, .is_concatenated = true}));
  EXPECT_FALSE(takes(hopper, {.channels = 60})) << "rows of the copy engine's are 16 bytes";
  EXPECT_FALSE(takes(hopper, {.stride = 2}));
  EXPECT_FALSE(takes(hopper, {.dtype = DType::f32}));
  EXPECT_FALSE(takes(*ir::find_device_spec("a100"), {}));
  EXPECT_EQ(prologue_limit(body({.stride = 2}), hopper), "no engine of sm_90a computes it");
}

TEST(PrologueLimit, HoppersFilterGradientsDoBesideFinishedStatistics) {
  const ir::DeviceSpec& hopper = *ir::find_device_spec("h100");
  EXPECT_TRUE(takes(hopper, {.is_wgrad = true})) << prologue_limit(body({.is_wgrad = true}), hopper);
  EXPECT_TRUE(takes(hopper, {.channels = 128, .is_wgrad = true, .is_concatenated = true}));
  EXPECT_FALSE(takes(hopper, {.channels = 64, .is_wgrad = true, .is_concatenated = true})) << "no whole chunk of 64";
  EXPECT_FALSE(takes(hopper, {.channels = 60, .is_wgrad = true}));
  EXPECT_FALSE(takes(hopper, {.dtype = DType::f32, .is_wgrad = true}));
  EXPECT_FALSE(takes(*ir::find_device_spec("a100"), {.is_wgrad = true}));
  EXPECT_TRUE(takes(hopper, {.is_finished = true}));
  EXPECT_FALSE(takes(hopper, {.is_wgrad = true, .is_finished = true})) << "only convolutions finish statistics";
}

TEST(PrologueLimit, TheCpuComputesThemImageByImage) {
  const ir::DeviceSpec cpu;
  for (const bool is_wgrad : {false, true}) {
    EXPECT_TRUE(takes(cpu, {.channels = 3, .dtype = DType::f32, .is_wgrad = is_wgrad}));
    EXPECT_TRUE(takes(cpu, {.is_wgrad = is_wgrad, .is_concatenated = true}));
  }
  Graph graph("body");
  Builder b(graph);
  const Value rows = b.silu(b.input("0", {DType::f32, {8, 4}})), more = b.input("1", {DType::f32, {8, 5}});
  graph.set_output("0", b.matmul(rows, more, true, false));
  EXPECT_EQ(prologue_limit(graph, cpu), "its rows are read as a whole");
}

TEST(PrologueSettings, SayWhoDecides) {
  using enum passes::Prologues;
  const ir::DeviceSpec cpu, &gpu = *ir::find_device_spec("h100");
  EXPECT_EQ(prologue_settings(automatic, cpu).prologues, never);
  EXPECT_EQ(prologue_settings(always, cpu).prologues, always);
  for (const passes::Prologues wanted : {automatic, always, never}) {
    EXPECT_EQ(prologue_settings(wanted, gpu).prologues, wanted) << "a tuner's decisions count on a GPU";
  }
  EXPECT_EQ(prologue_settings(always, gpu).prologue_limits(body({.stride = 2})), "no engine of sm_90a computes it");
}

}  // namespace
}  // namespace difuse::codegen
