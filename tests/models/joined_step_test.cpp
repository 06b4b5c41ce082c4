// A whole training step with equal launches as one, run by the emulator: every bit is that of the step without. So is
// it where launches that may run at once come in the opposite order.
#include <gtest/gtest.h>

#include <algorithm>

#include "codegen/cuda/lower_cuda.h"
#include "models/presets.h"
#include "passes/pipeline.h"
#include "runtime/compile.h"
#include "tests/models/step_case.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/backend/emulated_executor.h"
#include "tests/support/backend/opposite_order.h"

namespace difuse::models {
namespace {

TEST(SlowJoinedStep, KeepsEveryBit) {
  const ir::DeviceSpec& device = *ir::find_device_spec("sm_90a");
  Preset preset = find_preset("tiny");
  preset.training.batch = 2;
  const StepCase step = mid_training_step(preset.unet, preset.diffusion, preset.training);
  runtime::CompileSettings settings;
  settings.precision = passes::Precision::bf16;
  testing::EmulatedExecutor together(runtime::plan_cuda(step.graph, {}, device, settings));
  const ir::Graph graph = passes::run_pipeline(step.graph, device, {.precision = settings.precision});
  testing::EmulatedExecutor apart(codegen::cuda::lower_cuda(graph, passes::plan_memory(graph), device));
  EXPECT_LT(together.plan().calls.size() + 50, apart.plan().calls.size());
  EXPECT_GT(std::ranges::count_if(together.plan().calls, [](const auto& call) { return call.members > 1; }), 10);
  testing::EmulatedExecutor opposite(testing::opposite_order(together.plan()));
  EXPECT_GT(std::ranges::count_if(together.plan().calls, codegen::cuda::overlaps), 20);
  const testing::CpuRun expected = testing::run(apart, step.inputs, step.states, 2);
  testing::expect_same(testing::run(together, step.inputs, step.states, 2), expected, "the joined step");
  testing::expect_same(testing::run(opposite, step.inputs, step.states, 2), expected, "the opposite order");
}

}  // namespace
}  // namespace difuse::models
