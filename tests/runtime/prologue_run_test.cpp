// What convolutions compute of the image that they read has the bits of what is stored for them, in the kernels of both
// backends.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ir/builder.h"
#include "ir/strips.h"
#include "runtime/compile.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/backend/emulated_executor.h"
#include "tests/support/graphs/graphs.h"

namespace difuse {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Value;
using passes::Prologues;

/// A UNet's block behind a skip: normalise and SiLU of two images, one behind the other, and a 3x3 convolution; their
/// 1x1 convolution is added, and the sum normalised before the last convolution.
Graph block() {
  Graph graph("block");
  Builder b(graph);
  const auto conv = [&](Value x, const char* name, int64_t taps, int64_t channels) {
    const Value filter = b.input(name, {DType::f32, {channels, taps, taps, b.shape(x)[3]}});
    return b.conv_fprop(x, filter, 1, taps / 2);
  };
  const auto stored = [&](Value x) { return b.cast(x, DType::bf16); };
  const auto widened = [&](Value x) { return b.cast(x, DType::f32); };
  const auto activation = [&](Value x, const std::vector<Value>& parts) {
    const ir::Shape s = b.shape(x);
    std::vector<Builder::Moments> moments;
    for (const Value part : parts) moments.push_back(b.channel_moments(widened(part)));
    const auto stats = b.group_finish(moments, {4, 1e-2, s[1], s[2]});
    const Value centred = b.sub(widened(x), b.broadcast_image_channels(stats.mean, s));
    return b.silu(b.mul(centred, b.broadcast_image_channels(stats.rstd, s)));
  };
  const Value image = b.input("image", {DType::f32, {2, 9, 8, 8}});
  const std::vector<Value> parts = {stored(conv(image, "w0", 1, 64)), stored(conv(image, "w1", 3, 64))};
  const Value both = b.concat(parts, 3);
  const Value inner = stored(conv(activation(both, parts), "w2", 3, 8));
  const Value sum = stored(b.add(widened(inner), conv(widened(both), "skip", 1, 8)));
  graph.set_output("y", stored(conv(activation(sum, {sum}), "w3", 3, 8)));
  return graph;
}

/// A normalised image, its convolution, and the gradient of the filter, for which it would be stored. `is_finished`:
/// the image's statistics are there; otherwise those of its strips.
Graph filter_gradient(int64_t taps, int64_t side, bool is_finished) {
  Graph graph("filter_gradient");
  Builder b(graph);
  const Value x = b.input("x", {DType::bf16, {3, side, side, 72}}),
              dy = b.input("dy", {DType::bf16, {3, side, side, 64}});
  const ir::Shape shape = b.shape(x), rows = {3, 72};
  const ir::Shape parts = {3, ir::Strips{side, side}.count(), 72};
  Value mean = b.input("mean", {DType::f32, is_finished ? rows : parts});
  Value rstd = b.input("spread", b.type(mean));
  if (!is_finished) {
    const auto statistics = b.group_finish({{mean, rstd}}, {4, 0.5, side, side});
    mean = statistics.mean, rstd = statistics.rstd;
    graph.set_output("rstd", rstd);  // Others read it, too.
  }
  Value z = b.sub(b.cast(x, DType::f32), b.broadcast_image_channels(mean, shape));
  z = b.mul(z, b.broadcast_image_channels(rstd, shape));
  const Value image = b.cast(b.silu(z), DType::bf16);
  const Value filter = b.input("w", {DType::bf16, {64, taps, taps, 72}});
  graph.set_output("y", b.cast(b.conv_fprop(image, filter, 1, taps / 2), DType::bf16));
  graph.set_output("dw", b.conv_wgrad(image, dy, {1, taps / 2, taps, taps}));
  return graph;
}

class PrologueRun : public ::testing::Test {
 protected:
  runtime::CompileSettings settings(Prologues prologues) {
    runtime::CompileSettings s;
    s.precision = passes::Precision::bf16;
    s.prologues = prologues;
    s.report = &report_;
    return s;
  }
  int64_t computed() const {
    return std::ranges::count_if(report_.lines, [](const std::string& line) { return line.starts_with("computed"); });
  }

  const Graph graph_ = block();
  const ir::TensorMap inputs_ = tests::random_values(graph_, ir::Op::input, 1);
  passes::FusionReport report_;
};

TEST_F(PrologueRun, KeepsEveryBitOnTheCpu) {
  const auto run = [&](Prologues prologues) {
    return testing::run(*runtime::compile(graph_, {}, 2, settings(prologues)), inputs_, {});
  };
  const testing::CpuRun stored = run(Prologues::never);
  EXPECT_EQ(computed(), 0);
  testing::expect_same(run(Prologues::always), stored, "the CPU");
  EXPECT_GE(computed(), 3);
}

TEST_F(PrologueRun, KeepsEveryBitInTheEmulator) {
  const auto run = [&](Prologues prologues) {
    testing::EmulatedExecutor executor(
        runtime::plan_cuda(graph_, {}, *ir::find_device_spec("h100"), settings(prologues)));
    return testing::run(executor, inputs_, {});
  };
  const testing::CpuRun stored = run(Prologues::never);
  EXPECT_EQ(computed(), 0);
  testing::expect_same(run(Prologues::always), stored, "the emulator");
  EXPECT_EQ(computed(), 3);
}

/// The image is in no memory then: a launch less.
TEST_F(PrologueRun, FiltersGradientsKeepEveryBitInTheEmulator) {
  const ir::DeviceSpec& device = *ir::find_device_spec("h100");
  struct Row {
    int64_t taps, side;
    bool is_finished;
  };
  for (const auto& [taps, side, is_finished] : {Row{3, 9, true}, {1, 9, true}, {3, 8, false}, {1, 8, false}}) {
    const Graph graph = filter_gradient(taps, side, is_finished);
    const ir::TensorMap inputs = tests::random_values(graph, ir::Op::input, 1);
    size_t launches[2] = {};
    const auto run = [&](Prologues prologues, size_t& count) {
      const auto plan = runtime::plan_cuda(graph, {}, device, settings(prologues));
      count = plan.calls.size();
      testing::EmulatedExecutor executor(plan);
      return testing::run(executor, inputs, {});
    };
    const testing::CpuRun stored = run(Prologues::never, launches[0]);
    testing::expect_same(run(Prologues::always, launches[1]), stored, fmt::format("{0}x{0}", taps));
    EXPECT_EQ(launches[0], launches[1] + 1);
    size_t by_default = 0;
    run(Prologues::automatic, by_default);
    EXPECT_EQ(by_default, launches[0]) << "nobody has decided";
  }
}

/// So a tuner may decide as it likes, at one batch otherwise than at another.
TEST_F(PrologueRun, KeepsEveryBitWhicheverIsComputed) {
  const auto run = [&](const passes::FusionChoices& choices) {
    runtime::CompileSettings with = settings(Prologues::automatic);
    with.choices = &choices;
    report_ = {};
    testing::EmulatedExecutor executor(runtime::plan_cuda(graph_, {}, *ir::find_device_spec("h100"), with));
    return testing::run(executor, inputs_, {});
  };
  const testing::CpuRun stored = run({});
  EXPECT_EQ(computed(), 0);
  const std::vector<passes::PrologueSite> sites = report_.prologues;
  ASSERT_EQ(sites.size(), 3u);
  for (const passes::PrologueSite& site : sites) {
    passes::FusionChoices one;
    one.prologues = {{{site.site, site.batch}, true}};
    testing::expect_same(run(one), stored, site.site);
    EXPECT_EQ(computed(), 1) << site.site;
  }
}

}  // namespace
}  // namespace difuse
