// All candidates: that they compile, and, on a real GPU, that no tile changes a bit and times are times.
#include <gtest/gtest.h>

#include <numeric>

#include "codegen/cuda/tuning_site.h"
#include "ir/builder.h"
#include "ir/device_spec.h"
#include "runtime/tune/tune_step.h"
#include "tests/support/backend/gpu.h"
#include "tests/support/temp_folder.h"

namespace difuse::runtime {
namespace {

using ir::DType;

/// A convolution with its gradients, and attention with its own. Images are stored in bf16, as those inside a model
/// are.
ir::Graph example(int64_t batch = 8) {
  ir::Graph graph("example");
  ir::Builder b(graph);
  const ir::Type image{DType::f32, {batch, 16, 16, 64}};
  const ir::Value x = b.input("x", image), w = b.input("w", {DType::f32, {64, 3, 3, 64}}), dy = b.input("dy", image);
  const ir::Value qkv = b.input("qkv", {DType::f32, {batch, 256, 192}});
  const auto attention = b.attention(qkv, {.heads = 2});
  const ir::Value dout = b.input("dout", {DType::f32, {batch, 256, 64}});
  graph.set_output("y", b.cast(b.conv_fprop(x, w, 1, 1), DType::bf16));
  const ir::Value dx = b.conv_dgrad(dy, w, {.stride = 1, .pad = 1, .height = 16, .width = 16});
  graph.set_output("dx", b.cast(dx, DType::bf16));
  graph.set_output("dw", b.conv_wgrad(x, dy, {.stride = 1, .pad = 1, .r = 3, .s = 3}));
  graph.set_output("dqkv", b.attention_grad(qkv, attention.out, attention.lse, dout, {.heads = 2}));
  return graph;
}

codegen::cuda::CudaPlan example_plan(const ir::DeviceSpec& device, passes::Precision precision, int64_t batch = 8) {
  CompileSettings settings;
  settings.precision = precision;
  return plan_cuda(example(batch), {}, device, settings);
}

/// The convolution, the filter's gradient, attention, and the two kernels of its gradient; the image's gradient is a
/// convolution with the filter turned, and so the convolution's own problem. Hopper's engines read the filter where it
/// lies, so that it is one of its own, and their kernel of attention's gradient leaves nothing open; in tf32 that of
/// the filter's gradient.
size_t expected_sites(const ir::DeviceSpec& device, passes::Precision precision) {
  return device.architecture == 90 && precision != passes::Precision::f32 ? 4 : 5;
}

TEST(Candidates, BelongToEachProblemOnce) {
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    const ir::DeviceSpec& device = *ir::find_device_spec(architecture);
    for (const auto precision : {passes::Precision::bf16, passes::Precision::tf32, passes::Precision::f32}) {
      const auto sites = codegen::cuda::tuning_sites(example_plan(device, precision), device);
      EXPECT_EQ(sites.size(), expected_sites(device, precision)) << architecture << " " << passes::to_string(precision);
      for (const auto& site : sites) EXPECT_GE(site.choice().tiles.size(), 2u) << site.choice().problem;
    }
  }
}

TEST(Candidates, AreTheSameAtEveryBatchOnHopper) {
  const ir::DeviceSpec& device = *ir::find_device_spec("sm_90a");
  const auto sites_at = [&](int64_t batch) {
    return codegen::cuda::tuning_sites(example_plan(device, passes::Precision::bf16, batch), device);
  };
  const auto few = sites_at(3), many = sites_at(64);
  ASSERT_EQ(few.size(), many.size());
  for (size_t i = 0; i < few.size(); ++i) {
    EXPECT_EQ(few[i].choice().problem, many[i].choice().problem);
    EXPECT_EQ(few[i].choice().tiles, many[i].choice().tiles);
  }
}

struct Machine {
  const char* architecture;
  passes::Precision precision;
};

class SlowCandidates : public ::testing::TestWithParam<Machine> {};

/// What the estimate of registers lets through, the compiler finds room for.
TEST_P(SlowCandidates, Compile) {
  std::string reason;
  if (!codegen::NvrtcLibrary::load({}, &reason)) GTEST_SKIP() << reason;
  const ir::DeviceSpec& device = *ir::find_device_spec(GetParam().architecture);
  const auto plan = example_plan(device, GetParam().precision);
  std::vector<codegen::CudaSource> sources;
  for (const auto& site : codegen::cuda::tuning_sites(plan, device)) {
    std::vector<size_t> all(site.choice().tiles.size());
    std::iota(all.begin(), all.end(), size_t{0});
    const auto own = site.plan(all);
    sources.insert(sources.end(), own.sources.begin(), own.sources.end());
  }
  EXPECT_GT(sources.size(), 60u);
  codegen::KernelCache memory_only{{}};
  codegen::KernelCompiler compiler(memory_only, {});
  for (const auto& result : compiler.compile(sources)) {
    if (result.error) ADD_FAILURE() << result.error->what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, SlowCandidates,
    ::testing::Values(Machine{"sm_80", passes::Precision::bf16}, Machine{"sm_90a", passes::Precision::bf16},
                      Machine{"sm_80", passes::Precision::tf32}, Machine{"sm_90a", passes::Precision::tf32},
                      Machine{"sm_80", passes::Precision::f32}, Machine{"sm_90a", passes::Precision::f32}),
    [](const auto& made) {
      return std::string(made.param.architecture) + "_" + std::string(passes::to_string(made.param.precision));
    });

class GpuTuning : public ::testing::TestWithParam<passes::Precision> {};

TEST_P(GpuTuning, FindsTheSameBitsWithEveryTile) {
  DIFUSE_NEED_GPU(gpu);
  const test::TempFolder folder;
  ir::Options options;
  options.cache = folder.path().string();
  CompileSettings compiling;
  compiling.precision = GetParam();
  TuneSettings settings;
  settings.most_candidates = 60;
  const StepTuning tuning = tune_step(example(), options, gpu, compiling, settings);
  EXPECT_EQ(tuning.result.sites.size(), expected_sites(gpu.spec(), GetParam()));
  EXPECT_EQ(tuning.result.left, 0u);
  EXPECT_EQ(tuning.not_compared, "");
  for (const TunedSite& site : tuning.result.sites) {
    ASSERT_GE(site.winner, 0) << site.site->choice().problem;
    EXPECT_LE(site.seconds(), 1.01 * site.seconds_before());
    for (const TunedCandidate& c : site.candidates) {
      EXPECT_EQ(c.rejected, "") << site.site->choice().problem << ": " << c.tile;
      EXPECT_TRUE(c.seconds > 1e-6 && c.seconds < 1e-2) << c.tile << ": " << c.seconds;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, GpuTuning,
                         ::testing::Values(passes::Precision::bf16, passes::Precision::tf32, passes::Precision::f32),
                         [](const auto& made) { return std::string(passes::to_string(made.param)); });

}  // namespace
}  // namespace difuse::runtime
