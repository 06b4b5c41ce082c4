#include "ir/text.h"

#include <gtest/gtest.h>

#include "ir/builder.h"
#include "ir/error.h"
#include "ir/verify.h"

namespace difuse {
namespace {

constexpr std::string_view kNorm = R"(graph norm {
  %0 = input {name = "x", dtype = f32, shape = [2, 8, 8, 4]} : f32[2, 8, 8, 4]
  %1 = channel_moments %0 : f32[2, 1, 4], f32[2, 1, 4]
  %2 = state {name = "step \"counter\"", dtype = i32, shape = []} : i32[]
  %3 = constant {value = 1, dtype = i32, shape = []} : i32[]
  %4 = add %2, %3 : i32[]
  %5 = fusion %1.0, %1.1 {hero = pointwise, body = graph body {
    %0 = input {name = "0", dtype = f32, shape = [2, 1, 4]} : f32[2, 1, 4]
    %1 = input {name = "1", dtype = f32, shape = [2, 1, 4]} : f32[2, 1, 4]
    %2 = add %0, %1 : f32[2, 1, 4]
    output "0" = %2
    output "1" = %0
  }} : f32[2, 1, 4], f32[2, 1, 4]
  output "sum" = %5.0
  output "mean" = %5.1
  update "step \"counter\"" = %4
}
)";

TEST(Text, PrintsWhatItParses) { EXPECT_EQ(ir::print(ir::parse(kNorm)), kNorm); }

TEST(Text, CommentsAndSpacingDoNotCount) {
  const auto graph =
      ir::parse("graph g{ # a comment\n%7=input{name=\"x\",dtype=f32,shape=[3]}:f32[3] output \"y\"=%7}");
  EXPECT_EQ(ir::print(graph),
            "graph g {\n  %0 = input {name = \"x\", dtype = f32, shape = [3]} : f32[3]\n  output \"y\" = %0\n}\n");
}

TEST(Text, DoublesKeepEveryBit) {
  ir::Graph graph;
  ir::Builder b(graph);
  graph.set_output("y", b.literal({0.1, 1.0 / 3, 1e-300, -0.0, 12345678901234567.0}, {ir::DType::f32, {5}}));
  const auto again = ir::parse(ir::print(graph));
  EXPECT_EQ(again.node(0).as<ir::LiteralAttrs>().values, graph.node(0).as<ir::LiteralAttrs>().values);
}

struct Broken {
  std::string_view text, message;
};

class BrokenText : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenText, SaysWhereAndWhat) {
  try {
    ir::parse(GetParam().text);
    FAIL() << "parsed";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(GetParam().message), std::string::npos) << e.what();
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BrokenText,
    ::testing::Values(
        Broken{"grph g {}", "line 1, column 1: expected \"graph\", found \"grph g {}\""},
        Broken{"graph g {\n  %0 = frobnicate : f32[]\n}", "line 2, column 8: expected the name of an op"},
        Broken{"graph g {\n  %0 = neg %1 : f32[]\n}", "expected a value defined above"},
        Broken{"graph g {\n  %0 = input {name = \"x\", dtype = f64, shape = []} : f32[]\n}", "expected a dtype"},
        Broken{"graph g {\n  %0 = input {name = \"x\", dtype = f32, shape = [2]} : f32[3]\n}",
               "expected f32[2] (inferred) where f32[3] is written"},
        Broken{"graph g {\n  %0 = input {name = \"x\", dtype = f32, shape = [0]} : f32[0]\n}", "dimension below 1"},
        Broken{"graph g {\n  output \"y\" = %0\n}", "expected a value defined above"},
        Broken{"graph g {", "found the end of the text"},
        Broken{"graph g {\n  %0 = input {name = \"x\", dtype = f32, shape = []} : f32[]\n  %1 = input {name = \"x\", "
               "dtype = i32, shape = []} : i32[]\n}",
               "another input has this name"}));

TEST(Graph, EqualNodesAreOne) {
  ir::Graph graph;
  ir::Builder b(graph);
  const auto x = b.input("x", {ir::DType::f32, {3}});
  EXPECT_EQ(b.add(x, 1.0), b.add(x, 1.0));
  EXPECT_NE(b.add(x, 1.0), b.add(x, 2.0));
}

TEST(Graph, RefusesOperandsThatDoNotFit) {
  ir::Graph graph;
  ir::Builder b(graph);
  const auto x = b.input("x", {ir::DType::f32, {1, 28, 28, 3}});
  const auto w = b.input("w", {ir::DType::f32, {8, 3, 3, 4}});
  try {
    b.conv_fprop(x, w, 1, 1);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "conv_fprop: the image has 3 channels, the weight 4");
  }
  EXPECT_THROW(b.add(x, w), Error);
  EXPECT_THROW(graph.set_update("nothing", x), Error);
}

TEST(Verify, AFusionBodyHoldsNoState) {
  auto body = std::make_shared<ir::Graph>("body");
  ir::Builder inner(*body);
  body->set_output("0", inner.state("s", {ir::DType::f32, {}}));
  ir::Graph graph;
  graph.set_output("y", graph.add(ir::Op::fusion, {}, ir::FusionAttrs{ir::Hero::pointwise, body}));
  EXPECT_THROW(ir::verify(graph), Error);
}

}  // namespace
}  // namespace difuse
