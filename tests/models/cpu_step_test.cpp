// The whole training step on the CPU backend: against the fp64 reference, and bit for bit against itself.
#include <gtest/gtest.h>

#include <algorithm>

#include "codegen/cpu/onednn.h"
#include "models/presets.h"
#include "runtime/compile.h"
#include "tests/models/step_case.h"
#include "tests/support/backend/cpu_run.h"

namespace difuse::models {
namespace {

using testing::CpuRun;

CpuRun run(const StepCase& step, int threads, const runtime::CompileSettings& settings, int steps) {
  const auto executor = runtime::compile(step.graph, {}, threads, settings);
  return testing::run(*executor, step.inputs, step.states, steps);
}

/// tiny, trained to enlarge images.
UNetConfig enlarging() {
  UNetConfig unet = find_preset("tiny").unet;
  unet.conditioning_channels = unet.image_channels;
  unet.low_res_factor = 4;
  unet.learn_sigma = true;
  return unet;
}

TEST(CpuEnlargingStep, AgreesWithTheReference) {
  TrainingConfig training;
  training.batch = 5;
  training.optimizer.ema_decays = {0.99};
  expect_cpu_agrees(mid_training_step(enlarging(), {NoiseSchedule::cosine, 1000}, training), 1e-5);
}

class CpuStep : public ::testing::TestWithParam<std::pair<const char*, int64_t>> {};

TEST_P(CpuStep, AgreesWithTheReference) {
  expect_cpu_agrees(mid_training_step(GetParam().first, GetParam().second), 1e-5);
}

TEST_P(CpuStep, HasTheSameBitsForAnyThreadCountAndMemoryPlan) {
  const StepCase step = mid_training_step(GetParam().first, 13);
  const CpuRun two = run(step, 2, {}, 3);
  testing::expect_same(run(step, 1, {}, 3), two, "1 and 2 threads");
  testing::expect_same(run(step, 3, {}, 3), two, "3 and 2 threads");
  testing::expect_same(run(step, 2, {}, 3), two, "run after run");
  testing::expect_same(run(step, 2, {.reuse_memory = false}, 3), two, "fresh and planned memory");
}

// mnist-small norms single channels of 28x28 pixels, so the gradient of a bias before such a norm is zero by
// construction, and f32 leaves half a unit of a whole channel's sum in it. That noise is an image's own: it averages
// out over the batch, and is below the bound from some 16 images on.
INSTANTIATE_TEST_SUITE_P(Presets, CpuStep,
                         ::testing::Values(std::pair{"tiny", int64_t{13}}, std::pair{"fashion-demo", int64_t{5}},
                                           std::pair{"mnist-small", int64_t{24}}),
                         [](const auto& i) {
                           std::string name = i.param.first;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// The library's own reference implementation ("ref:any") is never used: a shape that has no other falls to the plain
// loops, and no shape of these models may.
TEST(CpuPlan, EveryContractionRunsOnAFastImplementation) {
  if (!codegen::OneDnn::load()) GTEST_SKIP() << "oneDNN is not installed";
  for (const char* model : {"tiny", "fashion-demo", "mnist-small"}) {
    const StepCase step = mid_training_step(model, 3);
    const auto executor = runtime::compile(step.graph, {}, 1);
    int contractions = 0;
    for (const auto& kernel : executor->profile()) {
      if (kernel.implementation.empty()) continue;
      ++contractions;
      for (const char* slow : {"ref", "plain"}) {
        EXPECT_EQ(kernel.implementation.find(slow), std::string::npos) << kernel.name << " " << kernel.implementation;
      }
    }
    EXPECT_GT(contractions, 40) << model;
  }
}

}  // namespace
}  // namespace difuse::models
