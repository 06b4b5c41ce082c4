// Every op's gradient rule against central differences in the fp64 reference.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "ir/builder.h"
#include "ir/op.h"
#include "passes/autodiff.h"
#include "tests/support/op_rows.h"

namespace difuse {
namespace {

using ir::Builder;
using ir::Graph;
using ir::Op;
using ir::Value;

constexpr uint64_t kSeed = 20240607;

/// loss = sum over f32 outputs of sum(output * weight), with weights as inputs "weight_y0", ...
Graph with_loss(const Graph& from) {
  Graph result("loss");
  std::vector<std::vector<Value>> mapped;
  for (int id = 0; id < from.size(); ++id) {
    std::vector<Value> operands;
    for (Value v : from.node(id).operands)
      operands.push_back(mapped[static_cast<size_t>(v.node)][static_cast<size_t>(v.result)]);
    mapped.push_back(ir::copy_node(result, from.node(id), operands));
  }
  Builder b(result);
  Value loss;
  for (const auto& [name, v] : from.outputs()) {
    const Value y = mapped[static_cast<size_t>(v.node)][static_cast<size_t>(v.result)];
    if (b.type(y).dtype != ir::DType::f32) continue;
    const Value term = b.sum_all(b.mul(y, b.input("weight_" + name, b.type(y))));
    loss = loss.valid() ? b.add(loss, term) : term;
  }
  if (loss.valid()) result.set_output("loss", loss);
  return result;
}

double loss_of(const Graph& graph, const ir::TensorMap& inputs) {
  return ir::run_reference(graph, inputs, {}).outputs.at("loss").data[0];
}

TEST(Gradient, EveryOpAgreesWithCentralDifferences) {
  fmt::print("seed {}\n", kSeed);
  std::set<Op> checked;
  for (const auto& row : testing::op_rows()) {
    if (!row.differentiable) continue;
    SCOPED_TRACE(row.name);
    const Graph loss_graph = with_loss(row.graph);
    if (loss_graph.outputs().empty()) continue;  // integers only
    Graph graph = with_loss(row.graph);
    Builder b(graph);
    std::vector<Value> wanted;
    std::vector<std::string> names;
    for (int id : graph.leaves(Op::input)) {
      const auto& name = graph.node(id).as<ir::LeafAttrs>().name;
      if (graph.node(id).types[0].dtype != ir::DType::f32 || name.starts_with("weight_")) continue;
      wanted.push_back({id, 0});
      names.push_back(name);
    }
    if (wanted.empty()) continue;
    const auto gradients = passes::differentiate(b, graph.outputs()[0].value, wanted);
    for (size_t i = 0; i < wanted.size(); ++i) graph.set_output("d_" + names[i], gradients[i]);

    ir::TensorMap inputs = testing::random_leaves(graph, Op::input, kSeed, row.fills);
    const auto result = ir::run_reference(graph, inputs, {});
    for (const std::string& name : names) {
      const auto& gradient = result.outputs.at("d_" + name).data;
      double largest = 1e-3;
      for (double g : gradient) largest = std::max(largest, std::abs(g));
      const size_t stride = std::max<size_t>(1, gradient.size() / (gradient.size() > 2000 ? 3 : 12));
      for (size_t i = 0; i < gradient.size(); i += stride) {
        double& x = inputs.at(name).data[i];
        const double at = x, h = 1e-5;
        x = at + h;
        const double above = loss_of(loss_graph, inputs);
        x = at - h;
        const double below = loss_of(loss_graph, inputs);
        x = at;
        EXPECT_NEAR(gradient[i], (above - below) / (2 * h),
                    1e-6 * largest * std::max(1.0, std::sqrt(static_cast<double>(gradient.size()))))
            << name << " element " << i;
      }
    }
    checked.insert(row.op);
  }
  // Piecewise constant ops, integer and random draws have no gradient; the rest must have been seen.
  for (const ir::OpInfo& o : ir::all_ops()) {
    if (o.rules.gradient && o.op != Op::attention_grad && o.op != Op::channel_moments && o.op != Op::round_tf32 &&
        o.op != Op::cast) {  // the two rounding points have their own test below
      EXPECT_TRUE(checked.contains(o.op)) << o.name << " has a gradient rule and no row that checks it";
    }
  }
}

TEST(Gradient, StraightThroughAtRoundingPoints) {
  Graph graph;
  Builder b(graph);
  const Value x = b.input("x", {ir::DType::f32, {3}});
  const Value y = b.cast(b.cast(b.round_tf32(x), ir::DType::bf16), ir::DType::f32);
  const auto dx = passes::differentiate(b, b.sum_all(b.mul(y, 3.0)), std::vector{x});
  graph.set_output("dx", dx[0]);
  const auto result = ir::run_reference(graph, {{"x", ir::Tensor({ir::DType::f32, {3}}, {1, 2, 3})}}, {});
  EXPECT_EQ(result.outputs.at("dx").data, (std::vector<double>{3, 3, 3}));
}

TEST(Gradient, OfAnUnreachedValueIsZero) {
  Graph graph;
  Builder b(graph);
  const Value x = b.input("x", {ir::DType::f32, {3}}), y = b.input("y", {ir::DType::f32, {2}});
  const auto d = passes::differentiate(b, b.sum_all(x), std::vector{y});
  EXPECT_EQ(graph.node(d[0]).as<ir::ConstantAttrs>().value, 0);
  EXPECT_EQ(b.shape(d[0]), ir::Shape{2});
}

}  // namespace
}  // namespace difuse
