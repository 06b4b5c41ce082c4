// A whole training step as a GPU would run it, on the CPU: what is computed again instead of kept has the same bits.
#include <gtest/gtest.h>

#include "ir/device_spec.h"
#include "models/presets.h"
#include "models/training_step.h"
#include "passes/memory_plan.h"
#include "passes/pipeline.h"
#include "passes/rematerialize.h"
#include "tests/models/step_case.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/backend/rematerialized.h"

namespace difuse::models {
namespace {

ir::Graph fused(const ir::Graph& graph) {
  ir::Options options;
  options.disable = {"rematerialize"};
  return passes::run_pipeline(graph, *ir::find_device_spec("h100"),
                              {.options = &options, .precision = passes::Precision::bf16});
}

TEST(RematerializedStep, KeepsEveryBitInASmallerArena) {
  const StepCase step = mid_training_step("tiny", 64);
  const ir::Graph kept = fused(step.graph), again = testing::rematerialized(kept);
  EXPECT_EQ(again.size(), kept.size());
  EXPECT_LT(passes::plan_memory(again).arena_bytes, 0.9 * passes::plan_memory(kept).arena_bytes);
  testing::expect_same(testing::run_cpu(again, step.inputs, step.states, {.steps = 2}),
                       testing::run_cpu(kept, step.inputs, step.states, {.steps = 2}), "the step");
}

/// What is computed again, and where, but for the bytes.
std::vector<std::string> choices(const char* model, int64_t batch, const passes::LeastBytes& least) {
  Preset preset = find_preset(model);
  preset.training.batch = batch;
  const ir::Graph graph = fused(build_training_step(preset.unet, preset.diffusion, preset.training));
  passes::Fuel fuel;
  passes::PassContext context{*ir::find_device_spec("h100"), fuel};
  passes::FusionReport report;
  passes::rematerialize(graph, context, &report, least);
  for (std::string& line : report.lines) line.resize(line.find(':'));
  return report.lines;
}

TEST(RematerializedStep, NoBatchChangesAChoice) {
  const std::vector<std::string> chosen = choices("tiny", 13, {0, 0});
  EXPECT_GT(chosen.size(), 4u);
  for (const int64_t batch : {1, 3, 64}) EXPECT_EQ(choices("tiny", batch, {0, 0}), chosen) << batch << " images";
}

TEST(RematerializedStep, OnlyWhereAnImageTakesMuch) {
  EXPECT_TRUE(choices("tiny", 64, {}).empty());
  EXPECT_GT(choices("adm-seed64", 2, {}).size(), 20u);
}

}  // namespace
}  // namespace difuse::models
