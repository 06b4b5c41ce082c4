// What convolutions compute of the image that they read has the bits of what is stored for them, in the kernels of both
// backends.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "ir/builder.h"
#include "ir/strips.h"
#include "runtime/compile.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/backend/emulated_executor.h"
#include "tests/support/backend/gpu.h"
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

/// The gradient of a block's second norm, which reaches its first convolution: of what the second one's gradient makes,
/// the image, and sums over both, a group's part of them. Its readers are that convolution's two gradients, and sums
/// for the bias.
struct NormShapes {
  int64_t images, side, channels;
  int64_t inputs = 64;  ///< Of the first convolution.
  int64_t skip = 0;  ///< More of them, of another image: the convolution, and its filter's gradient, concatenate both.
};
Graph norm_gradient(const NormShapes& s) {
  Graph graph(fmt::format("norm_gradient_n{}h{}c{}i{}s{}", s.images, s.side, s.channels, s.inputs, s.skip));
  Builder b(graph);
  constexpr int64_t kGroups = 8;
  const int64_t side = s.side, channels = s.channels;
  const ir::Shape shape = {s.images, side, side, channels}, rows = {s.images, channels};
  const ir::Shape groups = {s.images, kGroups, channels / kGroups};
  const auto bf16 = [&](const char* name, ir::Shape of) { return b.input(name, {DType::bf16, std::move(of)}); };
  const auto f32 = [&](const char* name, ir::Shape of) { return b.input(name, {DType::f32, std::move(of)}); };
  const auto stored = [&](Value x) { return b.cast(x, DType::bf16); };
  const auto widened = [&](Value x) { return b.cast(x, DType::f32); };
  const Value mean = f32("mean", rows), rstd = f32("rstd", rows), gamma = f32("gamma", {channels});
  const Value centred = b.sub(widened(bf16("x", shape)), b.broadcast_image_channels(mean, shape));
  const Value scale = b.broadcast_image_channels(b.mul(rstd, b.broadcast_channels(gamma, rows)), shape);
  const Value z = b.add(b.mul(centred, scale), b.broadcast_channels(f32("beta", {channels}), shape));
  const Value later = bf16("later", {s.images, side, side, 64});
  const Value dz =
      b.mul(widened(stored(b.conv_dgrad(later, bf16("w2", {64, 3, 3, channels}), {1, 1, side, side}))), b.sigmoid(z));
  const auto of_group = [&](Value sum) {
    const Value parts = b.mul(b.reshape(sum, groups), b.reshape(rstd, groups));
    return b.reshape(b.broadcast(b.reduce_sum(parts, {2}), groups, {0, 1}), rows);
  };
  const Value dz_sum = b.reduce_sum(dz, {1, 2}), moved_sum = b.reduce_sum(b.mul(dz, centred), {1, 2});
  Value dx = b.add(b.mul(dz, scale), b.mul(centred, b.broadcast_image_channels(of_group(moved_sum), shape)));
  dx = stored(b.add(dx, b.broadcast_image_channels(of_group(dz_sum), shape)));
  Value image = bf16("image", {s.images, side, side, s.inputs});
  if (s.skip > 0) {
    image = b.concat({image, bf16("skip", {s.images, side, side, s.skip})}, 3);
    image = stored(b.silu(widened(image)));
  }
  const int64_t inputs = b.shape(image)[3];
  graph.set_output("dgamma", b.reduce_sum(moved_sum, {0}));
  graph.set_output("dbias", b.reduce_sum(widened(dx), {1, 2}));
  graph.set_output("dw", b.conv_wgrad(image, dx, {1, 1, 3, 3}));
  graph.set_output("dimage", stored(b.conv_dgrad(dx, bf16("w1", {channels, 3, 3, inputs}), {1, 1, side, side})));
  return graph;
}

/// Who adds what is rounded alike in another order is as near as that.
void expect_same_but_for_sums(testing::CpuRun got, testing::CpuRun expected, const NormShapes& s,
                              const std::string& what) {
  const auto take_sums = [&](testing::CpuRun& from) {
    const ir::Tensor sums = testing::decode({DType::f32, {s.images, s.channels}}, from.outputs.at("dbias"));
    from.outputs.erase("dbias");
    return sums.data;
  };
  const std::vector<double> a = take_sums(got), e = take_sums(expected);
  const double largest = std::abs(std::ranges::max(e, {}, [](double x) { return std::abs(x); }));
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], e[i], 1e-5 * largest) << what << ", sum " << i;
  testing::expect_same(got, expected, what);
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

TEST_F(PrologueRun, ANormsGradientKeepsEveryBitOnTheCpu) {
  for (const NormShapes& s : {NormShapes{3, 8, 64, 64, 72}, {3, 9, 72}}) {
    const Graph graph = norm_gradient(s);
    const ir::TensorMap inputs = tests::random_values(graph, ir::Op::input, 1);
    const auto run = [&](Prologues prologues) {
      report_ = {};
      return testing::run(*runtime::compile(graph, {}, 2, settings(prologues)), inputs, {});
    };
    const testing::CpuRun stored = run(Prologues::never);
    const testing::CpuRun made = run(Prologues::always);
    EXPECT_EQ(computed(), s.skip > 0 ? 2 : 1) << graph.name();
    expect_same_but_for_sums(made, stored, s, graph.name());
  }
}

/// It is in no memory then. Only the order of the sums over it is another.
TEST_F(PrologueRun, ANormsGradientKeepsEveryBitInTheEmulator) {
  for (const NormShapes& s : {NormShapes{3, 8, 64, 64, 72}, {3, 9, 72}, {2, 17, 64}, {3, 16, 128, 64, 64}}) {
    const Graph graph = norm_gradient(s);
    const std::string& name = graph.name();
    const ir::TensorMap inputs = tests::random_values(graph, ir::Op::input, 1);
    size_t launches[2] = {};
    const auto run = [&](Prologues prologues, size_t& count) {
      report_ = {};
      const auto plan = runtime::plan_cuda(graph, {}, *ir::find_device_spec("h100"), settings(prologues));
      count = plan.calls.size();
      testing::EmulatedExecutor executor(plan);
      return testing::run(executor, inputs, {});
    };
    testing::CpuRun stored = run(Prologues::never, launches[0]), made = run(Prologues::always, launches[1]);
    // The sums' second stage may be one more.
    EXPECT_LE(launches[1] + (s.skip > 0 ? 1 : 0), launches[0]) << name;
    EXPECT_EQ(computed(), s.skip > 0 ? 2 : 1) << name;
    expect_same_but_for_sums(made, stored, s, name);
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

/// Likewise by Hopper's engines, of blocks as UNets have them.
TEST(GpuPrologue, ANormsGradientChangesNoBit) {
  DIFUSE_NEED_GPU(gpu);
  if (gpu.spec().architecture != 90) GTEST_SKIP() << "only Hopper's gradients have prologues";
  constexpr NormShapes kShapes[] = {{32, 64, 64, 64, 64},   {3, 64, 64, 128, 64},    {32, 32, 128, 128, 64},
                                    {5, 32, 128, 192, 128}, {33, 16, 192, 192, 192}, {32, 8, 256, 256, 256},
                                    {31, 8, 256, 256},      {7, 28, 72, 64, 40},     {5, 14, 96, 64, 8},
                                    {3, 7, 200, 72},        {2, 20, 64, 64, 64}};
  std::vector<codegen::cuda::CudaPlan> plans;
  std::vector<Graph> graphs;
  std::vector<ir::TensorMap> inputs;
  for (const NormShapes& s : kShapes) {
    graphs.push_back(norm_gradient(s));
    inputs.push_back(tests::random_values(graphs.back(), ir::Op::input, 1));
    for (const Prologues prologues : {Prologues::never, Prologues::always}) {
      runtime::CompileSettings settings;
      settings.precision = passes::Precision::bf16;
      settings.prologues = prologues;
      passes::FusionReport report;
      settings.report = &report;
      plans.push_back(runtime::plan_cuda(graphs.back(), {}, gpu.spec(), settings));
      const bool computes = std::ranges::any_of(report.lines, [](const std::string& line) {
        return line.starts_with("computed") && line.find("conv_dgrad") != std::string::npos;
      });
      EXPECT_EQ(computes, prologues == Prologues::always) << graphs.back().name();
    }
  }
  testing::compile_together(gpu, plans);
  for (size_t i = 0; i < graphs.size(); ++i) {
    testing::CpuRun runs[2];
    for (const size_t computed : {0, 1}) {
      const auto executor = testing::execute(gpu, std::move(plans[2 * i + computed]));
      runs[computed] = testing::run(*executor, inputs[i], {}, 3);
    }
    expect_same_but_for_sums(runs[1], runs[0], kShapes[i], graphs[i].name());
  }
}

}  // namespace
}  // namespace difuse
