// The reference against values worked out by hand or by a closed form.
#include "ir/reference.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ir/builder.h"
#include "ir/philox.h"

namespace difuse {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Shape;
using ir::Tensor;

std::vector<double> iota(int64_t n) {
  std::vector<double> v(static_cast<size_t>(n));
  for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<double>(i + 1);
  return v;
}

std::vector<double> run(const Graph& graph, const ir::TensorMap& inputs) {
  return ir::run_reference(graph, inputs, {}).outputs.at("y").data;
}

TEST(Reference, ConvolutionOfOnesCountsTheTapsInside) {
  Graph g;
  Builder b(g);
  g.set_output(
      "y", b.conv_fprop(b.constant(1, {DType::f32, {1, 3, 3, 2}}), b.constant(1, {DType::f32, {1, 3, 3, 2}}), 1, 1));
  EXPECT_EQ(run(g, {}), (std::vector<double>{8, 12, 8, 12, 18, 12, 8, 12, 8}));
}

TEST(Reference, StrideTwoTakesEveryOtherPixel) {
  Graph g;
  Builder b(g);
  g.set_output("y",
               b.conv_fprop(b.input("x", {DType::f32, {1, 4, 4, 1}}), b.constant(2, {DType::f32, {1, 1, 1, 1}}), 2, 0));
  EXPECT_EQ(run(g, {{"x", Tensor({DType::f32, {1, 4, 4, 1}}, iota(16))}}), (std::vector<double>{2, 6, 18, 22}));
}

TEST(Reference, MomentsAtAMeanOfTenThousandKeepTheirVariance) {
  Graph g;
  Builder b(g);
  const auto x = b.input("x", {DType::f32, {1, 2, 2, 1}});
  const auto m = b.channel_moments(x);
  g.set_output("y", b.group_finish({m}, {1, 0.0, 2, 2}).rstd);
  const std::vector<double> values{10000, 10001, 10002, 10003};
  EXPECT_NEAR(run(g, {{"x", Tensor({DType::f32, {1, 2, 2, 1}}, values)}})[0], 1 / std::sqrt(1.25), 1e-12);
}

TEST(Reference, AStripIsEightWideAndSixteenHigh) {
  Graph g;
  Builder b(g);
  const auto m = b.channel_moments(b.input("x", {DType::f32, {1, 17, 9, 1}}));
  EXPECT_EQ(b.shape(m.mean), (Shape{1, 4, 1}));
  g.set_output("y", m.mean);
  std::vector<double> x(17 * 9, 0.0);
  x[16 * 9 + 8] = 5;  // alone in the last strip
  x[8] = 32;          // one of 16 pixels in strip 1
  EXPECT_EQ(run(g, {{"x", Tensor({DType::f32, {1, 17, 9, 1}}, x)}}), (std::vector<double>{0, 2, 0, 5}));
}

TEST(Reference, AttentionOverEqualKeysIsTheMeanOfTheValues) {
  Graph g;
  Builder b(g);
  const auto qkv = b.input("x", {DType::f32, {1, 3, 3}});
  g.set_output("y", b.attention(qkv, {1, ir::QkvOrder::heads_first}).out);
  // rows are (q, k, v)
  EXPECT_EQ(run(g, {{"x", Tensor({DType::f32, {1, 3, 3}}, {1, 7, 3, -2, 7, 6, 5, 7, 9})}})[1], 6);
}

TEST(Reference, PhiloxKnownAnswers) {
  // Random123's kat_vectors for philox4x32 with 10 rounds.
  EXPECT_EQ(ir::philox({0, 0, 0, 0}, {0, 0}), (ir::Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(ir::philox({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (ir::Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(ir::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (ir::Philox4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Reference, NormalDrawsHaveMeanZeroAndVarianceOne) {
  Graph g;
  Builder b(g);
  g.set_output("y", b.random_normal(b.input("seed", {DType::u32, {2}}), b.input("index", {DType::i32, {4}}),
                                    b.input("step", {DType::i32, {}}), 0, {25000}));
  const auto y = run(g, {{"seed", Tensor({DType::u32, {2}}, {5, 0})},
                         {"index", Tensor({DType::i32, {4}}, {0, 1, 2, 3})},
                         {"step", Tensor({DType::i32, {}}, {9})}});
  double sum = 0, square = 0;
  for (double v : y) sum += v, square += v * v;
  EXPECT_NEAR(sum / 1e5, 0, 0.013);  // four standard errors
  EXPECT_NEAR(square / 1e5, 1, 0.018);
}

TEST(Reference, RoundingToEachType) {
  EXPECT_EQ(ir::round_to(1.00390625, DType::bf16), 1.0);       // a tie goes to even
  EXPECT_EQ(ir::round_to(1.01171875, DType::bf16), 1.015625);  // a tie goes to even, upwards
  EXPECT_EQ(ir::round_to(65519, DType::f16), 65504);
  EXPECT_EQ(ir::round_to(65520, DType::f16), INFINITY);
  EXPECT_EQ(ir::round_to(0x1p-25, DType::f16), 0);
  EXPECT_EQ(ir::round_to(0x1.8p-25, DType::f16), 0x1p-24);
  EXPECT_EQ(ir::round_to(-2.9, DType::i32), -2);
  EXPECT_EQ(ir::round_to(300, DType::u8), 255);
}

TEST(Reference, ErrorOfAComparison) {
  EXPECT_EQ(ir::relative_error(std::vector<double>{1, 2}, std::vector<double>{1, 4}), 0.5);
  // A tensor that is zero by construction is measured against the set's largest value.
  EXPECT_DOUBLE_EQ(ir::relative_error(std::vector<double>{1e-9}, std::vector<double>{0}, 10), 1e-7);
  EXPECT_EQ(ir::relative_error(std::vector<double>{NAN}, std::vector<double>{1}), INFINITY);
}

TEST(Reference, AStateWithoutAnUpdateStays) {
  Graph g;
  Builder b(g);
  const auto s = b.state("s", {DType::f32, {}}), t = b.state("t", {DType::f32, {}});
  g.set_update("s", b.add(s, t));
  const auto result =
      ir::run_reference(g, {}, {{"s", Tensor({DType::f32, {}}, {1})}, {"t", Tensor({DType::f32, {}}, {2})}});
  EXPECT_EQ(result.states.at("s").data[0], 3);
  EXPECT_EQ(result.states.at("t").data[0], 2);
}

}  // namespace
}  // namespace difuse
