#include "passes/hoist.h"

#include <gtest/gtest.h>

#include "ir/text.h"
#include "passes/memory_plan.h"
#include "passes/pipeline.h"
#include "tests/passes/moving_pass.h"

namespace difuse::passes {
namespace {

ir::Graph hoisted(const ir::Graph& graph, bool changed = true) { return tests::moved(hoist_invariant, graph, changed); }

constexpr const char* kSampler = R"(graph step {
  %0 = input {name = "x", dtype = f32, shape = [2, 4]} : f32[2, 4]
  %1 = state {name = "params", dtype = f32, shape = [32]} : f32[32]
  %2 = state {name = "position", dtype = f32, shape = []} : f32[]
  %3 = exp %0 : f32[2, 4]
  %4 = literal {dtype = f32, shape = [32], values = [2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]} : f32[32]
  %5 = mul %1, %4 : f32[32]
  %6 = cast %5 {dtype = bf16} : bf16[32]
  %7 = view %6 {offset = 0, shape = [4, 4]} : bf16[4, 4]
  %8 = cast %3 {dtype = bf16} : bf16[2, 4]
  %9 = matmul %8, %7 {transpose_a = false, transpose_b = true} : f32[2, 4]
  %10 = neg %2 : f32[]
  output "y" = %9
  update "position" = %10
}
)";

TEST(Hoist, WhatStepsMakeOfParametersAloneComesFirst) {
  // Both leaves and what is made of them before %3 = exp, which reads an input; nothing of a state that is replaced.
  ir::Graph graph = ir::parse(kSampler);
  const ir::Graph after = hoisted(graph);
  EXPECT_EQ(ir::print(after), R"(graph step {
  %0 = input {name = "x", dtype = f32, shape = [2, 4]} : f32[2, 4]
  %1 = state {name = "params", dtype = f32, shape = [32]} : f32[32]
  %2 = state {name = "position", dtype = f32, shape = []} : f32[]
  %3 = literal {dtype = f32, shape = [32], values = [2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]} : f32[32]
  %4 = mul %1, %3 : f32[32]
  %5 = cast %4 {dtype = bf16} : bf16[32]
  %6 = view %5 {offset = 0, shape = [4, 4]} : bf16[4, 4]
  %7 = exp %0 : f32[2, 4]
  %8 = cast %7 {dtype = bf16} : bf16[2, 4]
  %9 = matmul %8, %6 {transpose_a = false, transpose_b = true} : f32[2, 4]
  %10 = neg %2 : f32[]
  output "y" = %9
  update "position" = %10
}
)");
  EXPECT_EQ(invariant_prefix(graph), 0);
  EXPECT_EQ(invariant_prefix(after), 6);
}

TEST(Hoist, ThePlanKeepsWhatStepsRead) {
  const ir::Graph graph = hoisted(ir::parse(kSampler));
  const MemoryPlan plan = plan_memory(graph);
  EXPECT_EQ(plan.once_end, 6);
  // The cast is kept behind the leaves; the product before it dies with it and leaves its place to the step.
  const Placement kept = plan.at({5, 0}), passing = plan.at({4, 0});
  for (int id = 7; id < graph.size(); ++id) {
    const Placement& p = plan.at({id, 0});
    EXPECT_TRUE(p.offset + p.bytes <= kept.offset || kept.offset + kept.bytes <= p.offset) << id;
  }
  EXPECT_EQ(passing.offset, plan.at({7, 0}).offset);
  EXPECT_EQ(plan_memory(graph, {.once = false}).once_end, 0);
}

TEST(Hoist, AStateThatBecomesWhatIsKeptGetsACopyInEveryStep) {
  const ir::Graph graph = ir::parse(R"(graph step {
    %0 = state {name = "s", dtype = f32, shape = [4]} : f32[4]
    %1 = state {name = "params", dtype = f32, shape = [4]} : f32[4]
    %2 = exp %1 : f32[4]
    %3 = mul %0, %2 : f32[4]
    output "y" = %3
    update "s" = %2
  })");
  const MemoryPlan plan = plan_memory(graph);
  EXPECT_EQ(plan.once_end, 3);
  EXPECT_NE(plan.at({2, 0}).offset, plan.at({0, 0}).offset);
  ASSERT_EQ(plan.state_copies.size(), 1);
  EXPECT_EQ(plan.state_copies[0].state, "s");
}

TEST(Hoist, ATrainingStepStaysAsItIs) {
  // The parameters are replaced, and so is all that is made of them.
  tests::expect_not_moved(hoist_invariant, R"(graph step {
    %0 = input {name = "x", dtype = f32, shape = [8]} : f32[8]
    %1 = state {name = "params", dtype = f32, shape = [8]} : f32[8]
    %2 = exp %0 : f32[8]
    %3 = cast %1 {dtype = bf16} : bf16[8]
    %4 = add %1, %2 : f32[8]
    output "y" = %3
    update "params" = %4
  })");
}

TEST(Hoist, WhatIsFirstStaysAsItIs) {
  tests::expect_not_moved(hoist_invariant, R"(graph step {
    %0 = state {name = "params", dtype = f32, shape = [8]} : f32[8]
    %1 = cast %0 {dtype = bf16} : bf16[8]
    %2 = input {name = "x", dtype = f32, shape = [8]} : f32[8]
    %3 = cast %1 {dtype = f32} : f32[8]
    %4 = add %2, %3 : f32[8]
    output "y" = %4
  })");
}

TEST(Hoist, WhatIsMuchLargerThanItsOperandsIsMadeWhereItIsRead) {
  tests::expect_not_moved(hoist_invariant, R"(graph step {
    %0 = input {name = "x", dtype = f32, shape = [8, 64, 64, 8]} : f32[8, 64, 64, 8]
    %1 = state {name = "bias", dtype = f32, shape = [8]} : f32[8]
    %2 = exp %0 : f32[8, 64, 64, 8]
    %3 = broadcast %1 {shape = [8, 64, 64, 8], dims = [3]} : f32[8, 64, 64, 8]
    %4 = neg %3 : f32[8, 64, 64, 8]
    %5 = add %2, %4 : f32[8, 64, 64, 8]
    output "y" = %5
  })");
}

TEST(Hoist, IsThePipelinesLastPass) {
  const ir::Graph graph = ir::parse(kSampler);
  const ir::Graph after = run_pipeline(graph, {}, {});
  EXPECT_GT(invariant_prefix(after), 0);
  ir::Options options;
  options.disable = {"hoist"};
  EXPECT_EQ(invariant_prefix(run_pipeline(graph, {}, {.options = &options})), 0);
}

}  // namespace
}  // namespace difuse::passes
