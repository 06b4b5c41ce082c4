#include "ir/dot.h"

#include <gtest/gtest.h>

#include "ir/text.h"

namespace difuse {
namespace {

TEST(Dot, FramesBodiesAndNamesTypes) {
  const ir::Graph graph = ir::parse(R"(graph a {
  %0 = input {name = "x", dtype = f32, shape = [2]} : f32[2]
  %1 = state {name = "s \"t\"", dtype = f32, shape = [2]} : f32[2]
  %2 = neg %0 : f32[2]
  %3 = fusion %2, %1 {hero = pointwise, body = graph body {
    %0 = input {name = "0", dtype = f32, shape = [2]} : f32[2]
    %1 = input {name = "1", dtype = f32, shape = [2]} : f32[2]
    %2 = add %0, %1 : f32[2]
    %3 = silu %2 : f32[2]
    output "0" = %2
    output "1" = %3
  }} : f32[2], f32[2]
  output "y" = %3.1
  update "s \"t\"" = %3.0
}
)");
  EXPECT_EQ(ir::to_dot(graph), R"(digraph "a" {
  node [shape=box, fontname="Helvetica"]; edge [fontname="Helvetica", fontsize=9];
  n0 [label="input x", shape=ellipse];
  n1 [label="state s \"t\"", shape=ellipse];
  n2 [label="%2 neg"];
  subgraph cluster_n3 {
  label="%3 pointwise"; style=rounded;
  n3_2 [label="%2 add"];
  n3_3 [label="%3 silu"];
  }
  end0 [label="output y", shape=ellipse, style=bold];
  end1 [label="update s \"t\"", shape=ellipse, style=bold];
  n0 -> n2 [label="f32[2]"];
  n2 -> n3_2 [label="f32[2]"];
  n1 -> n3_2 [label="f32[2]"];
  n3_2 -> n3_3 [label="f32[2]"];
  n3_3 -> end0 [label="f32[2]"];
  n3_2 -> end1 [label="f32[2]"];
}
)");
}

}  // namespace
}  // namespace difuse
