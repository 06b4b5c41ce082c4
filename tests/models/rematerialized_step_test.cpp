// A whole training step as a GPU would run it, on the CPU: what is computed again instead of kept has the same bits.
#include <gtest/gtest.h>

#include "ir/text.h"
#include "passes/memory_plan.h"
#include "passes/pipeline.h"
#include "tests/models/step_case.h"
#include "tests/support/backend/cpu_run.h"

namespace difuse::models {
namespace {

TEST(RematerializedStep, KeepsEveryBitInASmallerArena) {
  const StepCase step = mid_training_step("tiny", 64);
  const auto compiled = [&](const ir::Options& options) {
    return passes::run_pipeline(step.graph, *ir::find_device_spec("h100"),
                                {.options = &options, .precision = passes::Precision::bf16});
  };
  ir::Options options;
  const ir::Graph again = compiled(options);
  options.disable = {"rematerialize"};
  const ir::Graph kept = compiled(options);
  EXPECT_EQ(again.size(), kept.size());
  EXPECT_LT(passes::plan_memory(again).arena_bytes, 0.9 * passes::plan_memory(kept).arena_bytes);
  testing::expect_same(testing::run_cpu(again, step.inputs, step.states, {.steps = 2}),
                       testing::run_cpu(kept, step.inputs, step.states, {.steps = 2}), "the step");
}

}  // namespace
}  // namespace difuse::models
