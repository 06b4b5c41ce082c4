#include "passes/autodiff.h"

#include <gtest/gtest.h>

#include "ir/error.h"
#include "ir/text.h"
#include "tests/support/graphs/graphs.h"

namespace difuse::passes {
namespace {

using ir::Builder;
using ir::Graph;
using ir::Value;

TEST(Autodiff, GivesTheTextOfASmallGradient) {
  Graph graph("g");
  Builder b(graph);
  const Value x = b.input("x", {ir::DType::f32, {3}}), w = b.input("w", {ir::DType::f32, {}});
  const Value loss = b.sum_all(b.mul(b.broadcast_scalar(w, {3}), b.sin(x)));
  const Value wanted[] = {x, w};
  const auto gradients = differentiate(b, loss, wanted);
  graph.set_output("dx", gradients[0]);
  graph.set_output("dw", gradients[1]);
  EXPECT_EQ(ir::print(graph), R"(graph g {
  %0 = input {name = "x", dtype = f32, shape = [3]} : f32[3]
  %1 = input {name = "w", dtype = f32, shape = []} : f32[]
  %2 = sin %0 : f32[3]
  %3 = broadcast %1 {shape = [3], dims = []} : f32[3]
  %4 = mul %3, %2 : f32[3]
  %5 = reduce_sum %4 {axes = [0]} : f32[]
  %6 = constant {value = 1, dtype = f32, shape = []} : f32[]
  %7 = broadcast %6 {shape = [3], dims = []} : f32[3]
  %8 = mul %7, %2 : f32[3]
  %9 = mul %7, %3 : f32[3]
  %10 = reduce_sum %8 {axes = [0]} : f32[]
  %11 = cos %0 : f32[3]
  %12 = mul %9, %11 : f32[3]
  output "dx" = %12
  output "dw" = %10
}
)");
}

TEST(Autodiff, NormBlockAgreesWithCentralDifferences) {
  const Graph graph = tests::norm_block(2, 4, 6, 4, 2);
  ir::TensorMap inputs = tests::random_values(graph, ir::Op::input, 3);
  const ir::ReferenceResult result = ir::run_reference(graph, inputs, {});
  auto loss = [&] { return ir::run_reference(graph, inputs, {}).outputs.at("loss").data[0]; };
  constexpr double kStep = 1e-5;
  for (const std::string name : {"w1", "b1", "gamma", "beta", "w2"}) {
    const std::vector<double>& gradient = result.outputs.at("d" + name).data;
    std::vector<double> expected, given;
    std::vector<double>& values = inputs.at(name).data;
    for (size_t i = 0; i < values.size(); i += 1 + values.size() / 5) {
      const double kept = values[i];
      values[i] = kept + kStep;
      const double above = loss();
      values[i] = kept - kStep;
      const double below = loss();
      values[i] = kept;
      expected.push_back((above - below) / (2 * kStep));
      given.push_back(gradient[i]);
    }
    EXPECT_LE(ir::relative_error(given, expected), 1e-6) << name;
  }
}

TEST(Autodiff, NothingPassesThroughAHeldValue) {
  Graph graph("g");
  Builder b(graph);
  const Value x = b.input("x", {ir::DType::f32, {}});
  const Value doubled = b.mul(x, 2.0), held = b.mul(doubled, 3.0);  // d(y^2 + 3y * x)/dx at y = 2x, 3y held
  const Value wanted[] = {x}, constants[] = {held};
  const Value loss = b.add(b.square(doubled), b.mul(held, x));
  graph.set_output("dx", differentiate(b, loss, wanted, constants)[0]);
  graph.set_output("dx_all", differentiate(b, loss, wanted)[0]);
  const auto outputs = ir::run_reference(graph, {{"x", {{ir::DType::f32, {}}, {5.0}}}}, {}).outputs;
  EXPECT_EQ(outputs.at("dx").data[0], 8 * 5.0 + 6 * 5.0);
  EXPECT_EQ(outputs.at("dx_all").data[0], 8 * 5.0 + 12 * 5.0);
}

TEST(Autodiff, ALossMustBeAScalar) {
  Graph graph("g");
  Builder b(graph);
  const Value x = b.input("x", {ir::DType::f32, {3}});
  const Value wanted[] = {x};
  EXPECT_THROW(differentiate(b, b.sin(x), wanted), Error);
}

}  // namespace
}  // namespace difuse::passes
