#include "passes/late_updates.h"

#include <gtest/gtest.h>

#include "ir/text.h"
#include "passes/memory_plan.h"
#include "passes/pipeline.h"
#include "tests/passes/moving_pass.h"

namespace difuse::passes {
namespace {

ir::Graph updated(const ir::Graph& graph, bool changed) { return tests::moved(update_late, graph, changed); }

constexpr const char* kCountingStep = R"(graph step {
  %0 = input {name = "x", dtype = f32, shape = [4]} : f32[4]
  %1 = state {name = "step", dtype = f32, shape = []} : f32[]
  %2 = constant {value = 1, dtype = f32, shape = []} : f32[]
  %3 = add %1, %2 : f32[]
  %4 = exp %0 : f32[4]
  %5 = broadcast %1 {shape = [4], dims = []} : f32[4]
  %6 = mul %4, %5 : f32[4]
  output "y" = %6
  update "step" = %3
}
)";

TEST(LateUpdates, ACounterIsCountedBehindItsReaders) {
  const ir::Graph before = ir::parse(kCountingStep), after = updated(before, true);
  EXPECT_EQ(ir::print(after), R"(graph step {
  %0 = input {name = "x", dtype = f32, shape = [4]} : f32[4]
  %1 = state {name = "step", dtype = f32, shape = []} : f32[]
  %2 = constant {value = 1, dtype = f32, shape = []} : f32[]
  %3 = exp %0 : f32[4]
  %4 = broadcast %1 {shape = [4], dims = []} : f32[4]
  %5 = mul %3, %4 : f32[4]
  %6 = add %1, %2 : f32[]
  output "y" = %5
  update "step" = %6
}
)");
  EXPECT_EQ(plan_memory(before).state_copies.size(), 1);
  const MemoryPlan plan = plan_memory(after);
  EXPECT_TRUE(plan.state_copies.empty());
  EXPECT_EQ(plan.at({6, 0}).offset, plan.at({1, 0}).offset);
}

TEST(LateUpdates, ThePipelineNeedsNoCopy) {
  const ir::Graph graph = ir::parse(kCountingStep);
  EXPECT_TRUE(plan_memory(run_pipeline(graph, {}, {})).state_copies.empty());
  ir::Options options;
  options.disable = {"late_updates"};
  EXPECT_EQ(plan_memory(run_pipeline(graph, {}, {.options = &options})).state_copies.size(), 1);
}

TEST(LateUpdates, WhatSomebodyReadsStaysAsItIs) {
  tests::expect_not_moved(update_late, R"(graph step {
    %0 = state {name = "step", dtype = f32, shape = []} : f32[]
    %1 = neg %0 : f32[]
    %2 = exp %1 : f32[]
    %3 = exp %0 : f32[]
    output "y" = %2
    output "z" = %3
    update "step" = %1
  })");
}

TEST(LateUpdates, WhatWouldKeepAnotherTensorAliveStaysAsItIs) {
  tests::expect_not_moved(update_late, R"(graph step {
    %0 = input {name = "x", dtype = f32, shape = [4]} : f32[4]
    %1 = state {name = "mean", dtype = f32, shape = [4]} : f32[4]
    %2 = exp %0 : f32[4]
    %3 = add %1, %2 : f32[4]
    %4 = exp %1 : f32[4]
    output "y" = %4
    update "mean" = %3
  })");
}

TEST(LateUpdates, WhatReadsAnotherStateThatIsReplacedStaysAsItIs) {
  // Behind %4 the old value of "b" would be gone, or need a copy.
  tests::expect_not_moved(update_late, R"(graph step {
    %0 = state {name = "a", dtype = f32, shape = [4]} : f32[4]
    %1 = state {name = "b", dtype = f32, shape = [4]} : f32[4]
    %2 = add %0, %1 : f32[4]
    %3 = exp %0 : f32[4]
    %4 = mul %1, %3 : f32[4]
    output "y" = %3
    update "a" = %2
    update "b" = %4
  })");
}

TEST(LateUpdates, WhatIsLastAlreadyStaysAsItIs) {
  tests::expect_not_moved(update_late, R"(graph step {
    %0 = state {name = "step", dtype = f32, shape = []} : f32[]
    %1 = exp %0 : f32[]
    %2 = neg %0 : f32[]
    %3 = input {name = "x", dtype = f32, shape = []} : f32[]
    %4 = neg %3 : f32[]
    output "y" = %1
    output "z" = %4
    update "step" = %2
  })");
}

}  // namespace
}  // namespace difuse::passes
