#include "passes/carry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "ir/text.h"
#include "ir/verify.h"
#include "passes/pipeline.h"
#include "tests/passes/moving_pass.h"

namespace difuse::passes {
namespace {

using ir::Graph;

TEST(Carry, TheNextValueIsRoundedInsteadOfTheState) {
  EXPECT_EQ(ir::print(tests::moved(carry_rounded, ir::parse(R"(graph step {
  %0 = state {name = "params", dtype = f32, shape = [20000]} : f32[20000]
  %1 = cast %0 {dtype = bf16} : bf16[20000]
  %2 = slice %1 {axis = 0, begin = 0, end = 100} : bf16[100]
  %3 = neg %0 : f32[20000]
  output "y" = %2
  update "params" = %3
}
)"),
                                   true)),
            R"(graph step {
  %0 = state {name = "params", dtype = f32, shape = [20000]} : f32[20000]
  %1 = carry %0 {name = "params in bf16", dtype = bf16} : bf16[20000]
  %2 = slice %1 {axis = 0, begin = 0, end = 100} : bf16[100]
  %3 = neg %0 : f32[20000]
  %4 = cast %3 {dtype = bf16} : bf16[20000]
  output "y" = %2
  update "params" = %3
  update "params in bf16" = %4
}
)");
}

TEST(Carry, EachFormatIsCarriedAndCostsFuel) {
  const Graph graph = ir::parse(R"(graph step {
    %0 = state {name = "params", dtype = f32, shape = [20000]} : f32[20000]
    %1 = cast %0 {dtype = bf16} : bf16[20000]
    %2 = round_tf32 %0 : f32[20000]
    %3 = neg %0 : f32[20000]
    %4 = slice %1 {axis = 0, begin = 0, end = 100} : bf16[100]
    %5 = slice %2 {axis = 0, begin = 0, end = 100} : f32[100]
    output "y" = %4
    output "z" = %5
    update "params" = %3
  })");
  const auto names = [&](int64_t given) {
    const ir::DeviceSpec device;
    Fuel fuel(given);
    PassContext context{device, fuel};
    const Graph after = carry_rounded(graph, context).graph;
    EXPECT_EQ(ir::print(ir::parse(ir::print(after))), ir::print(after));
    std::vector<std::string> found;
    for (const ir::NamedValue& update : after.updates()) found.push_back(update.name);
    return found;
  };
  EXPECT_EQ(names(0), (std::vector<std::string>{"params"}));
  EXPECT_EQ(names(1), (std::vector<std::string>{"params", "params in bf16"}));
  EXPECT_EQ(names(2), (std::vector<std::string>{"params", "params in bf16", "params in tf32"}));
}

TEST(Carry, WhatNoStepReplacesStaysAsItIs) {
  tests::expect_not_moved(carry_rounded, R"(graph step {
    %0 = state {name = "params", dtype = f32, shape = [20000]} : f32[20000]
    %1 = cast %0 {dtype = bf16} : bf16[20000]
    output "y" = %1
  })");
}

TEST(Carry, WhatAnOutputShowsStaysAsItIs) {
  tests::expect_not_moved(carry_rounded, R"(graph step {
    %0 = state {name = "params", dtype = f32, shape = [20000]} : f32[20000]
    %1 = cast %0 {dtype = bf16} : bf16[20000]
    %2 = reshape %1 {shape = [200, 100]} : bf16[200, 100]
    %3 = neg %0 : f32[20000]
    output "y" = %2
    update "params" = %3
  })");
}

TEST(Carry, WhatIsSmallIsRoundedOnTheWay) {
  tests::expect_not_moved(carry_rounded, R"(graph step {
    %0 = state {name = "params", dtype = f32, shape = [20]} : f32[20]
    %1 = cast %0 {dtype = bf16} : bf16[20]
    %2 = neg %0 : f32[20]
    output "y" = %1
    update "params" = %2
  })");
}

TEST(Carry, OnlyStatesAreCarried) {
  EXPECT_ANY_THROW(ir::verify(ir::parse(R"(graph step {
    %0 = input {name = "x", dtype = f32, shape = [20000]} : f32[20000]
    %1 = carry %0 {name = "x in bf16", dtype = bf16} : bf16[20000]
    output "y" = %1
  })")));
}

TEST(Carry, FusionRoundsWhereTheNextValueIsMade) {
  Graph graph("step");
  ir::Builder b(graph);
  constexpr int64_t kSize = 64 * 9 * 64;
  const ir::Value params = b.state("params", {ir::DType::f32, {2 * kSize}});
  ir::Value y = b.input("x", {ir::DType::f32, {1, 8, 8, 64}});
  for (const int64_t at : {int64_t{0}, kSize}) y = b.conv_fprop(y, b.view(params, at, {64, 3, 3, 64}), 1, 1);
  graph.set_output("y", y);
  graph.set_update("params", b.mul(b.sub(params, b.exp(params)), 0.5));
  const Graph fused = run_pipeline(graph, {}, {.precision = Precision::bf16});
  const auto update_of = [&](const char* name) {
    return std::ranges::find(fused.updates(), name, &ir::NamedValue::name)->value;
  };
  EXPECT_EQ(update_of("params").node, update_of("params in bf16").node);
  EXPECT_EQ(fused.node(update_of("params")).op, ir::Op::fusion);
}

}  // namespace
}  // namespace difuse::passes
