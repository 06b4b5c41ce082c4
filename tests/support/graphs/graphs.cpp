#include "tests/support/graphs/graphs.h"

#include <gtest/gtest.h>

#include <random>

#include "ir/op.h"
#include "passes/autodiff.h"

namespace difuse::tests {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Type;
using ir::Value;

Graph norm_block(int64_t batch, int64_t height, int64_t width, int64_t channels, int64_t groups) {
  Graph graph("norm_block");
  Builder b(graph);
  auto f32 = [](ir::Shape shape) { return Type{DType::f32, std::move(shape)}; };
  const ir::Shape image{batch, height, width, channels};
  const Value x = b.input("image", f32({batch, height, width, 1}));
  const Value w1 = b.input("w1", f32({channels, 3, 3, 1})), b1 = b.input("b1", f32({channels}));
  const Value gamma = b.input("gamma", f32({channels})), beta = b.input("beta", f32({channels}));
  const Value w2 = b.input("w2", f32({channels, 3, 3, channels}));

  const Value h = b.add(b.conv_fprop(x, w1, 1, 1), b.broadcast_channels(b1, image));
  const auto statistics = b.group_finish({b.channel_moments(h)}, {groups, 1e-5, height, width});
  const Value scale = b.mul(statistics.rstd, b.broadcast_channels(gamma, b.shape(statistics.rstd)));
  const Value centred = b.sub(h, b.broadcast_image_channels(statistics.mean, image));
  const Value z = b.add(b.mul(centred, b.broadcast_image_channels(scale, image)), b.broadcast_channels(beta, image));
  const Value y = b.conv_fprop(b.silu(z), w2, 1, 1);
  const Value loss = b.mean_all(b.square(y));

  const std::vector<Value> wanted = {w1, b1, gamma, beta, w2};
  const auto gradients = passes::differentiate(b, loss, wanted);
  graph.set_output("loss", loss);
  const char* names[] = {"dw1", "db1", "dgamma", "dbeta", "dw2"};
  for (size_t i = 0; i < wanted.size(); ++i) graph.set_output(names[i], gradients[i]);
  return graph;
}

Graph scaled_convolutions(int64_t batch, int depth, int64_t channels) {
  Graph graph("scaled_convolutions");
  Builder b(graph);
  const ir::Shape image{batch, 8, 8, channels};
  Value x = b.input("image", {DType::f32, image});
  std::vector<Value> wanted;
  std::vector<std::string> names;
  for (int i = 0; i < depth; ++i) {
    names.push_back("scale" + std::to_string(i));
    wanted.push_back(b.input(names.back(), {DType::f32, {channels}}));
    const Value scaled = b.mul(x, b.broadcast_channels(wanted.back(), image));
    names.push_back("filter" + std::to_string(i));
    wanted.push_back(b.input(names.back(), {DType::f32, {channels, 3, 3, channels}}));
    x = b.conv_fprop(b.silu(scaled), wanted.back(), 1, 1);
  }
  const Value loss = b.mean_all(b.square(x));
  const auto gradients = passes::differentiate(b, loss, wanted);
  graph.set_output("loss", loss);
  for (size_t i = 0; i < wanted.size(); ++i) graph.set_output("d" + names[i], gradients[i]);
  return graph;
}

Graph adam(int64_t size) {
  Graph graph("adam");
  Builder b(graph);
  const Type flat{DType::f32, {size}};
  const Value p = b.state("p", flat), m = b.state("m", flat), v = b.state("v", flat), ema = b.state("ema", flat);
  const Value g = b.input("g", flat);
  const Value norm = b.sqrt(b.sum_all(b.square(g)));
  const Value clipped = b.mul(g, b.broadcast_scalar(b.div(1.0, b.max(norm, 1.0)), flat.shape));
  const Value m1 = b.add(b.mul(m, 0.9), b.mul(clipped, 0.1));
  const Value v1 = b.add(b.mul(v, 0.99), b.mul(b.square(clipped), 0.01));
  const Value p1 = b.sub(b.mul(p, 0.999), b.mul(b.div(m1, b.add(b.sqrt(v1), 1e-8)), 0.01));
  graph.set_output("norm", norm);
  graph.set_update("p", p1);
  graph.set_update("m", m1);
  graph.set_update("v", v1);
  graph.set_update("ema", b.add(b.mul(ema, 0.9), b.mul(p1, 0.1)));
  return graph;
}

ir::TensorMap random_values(const Graph& graph, ir::Op leaf, uint64_t seed) {
  std::mt19937_64 random(seed);
  ir::TensorMap values;
  for (int id : graph.leaves(leaf)) {
    ir::Tensor tensor(graph.node(id).types[0]);
    for (double& x : tensor.data) {
      x = ir::is_float(tensor.type.dtype) ? std::uniform_real_distribution<double>(-1, 1)(random)
                                          : std::uniform_int_distribution<int>(0, 3)(random);
      if (tensor.type.dtype != DType::f32) x = ir::round_to(x, tensor.type.dtype);
    }
    values[graph.node(id).as<ir::LeafAttrs>().name] = std::move(tensor);
  }
  return values;
}

void expect_same_results(const Graph& a, const Graph& b, double tolerance) {
  const auto inputs = random_values(a, ir::Op::input, 1), states = random_values(a, ir::Op::state, 2);
  const ir::ReferenceResult first = ir::run_reference(a, inputs, states);
  const ir::ReferenceResult second = ir::run_reference(b, inputs, states);
  ASSERT_EQ(first.outputs.size(), second.outputs.size());
  for (const auto& [name, tensor] : first.outputs) {
    ASSERT_TRUE(second.outputs.contains(name)) << name;
    EXPECT_LE(ir::relative_error(second.outputs.at(name).data, tensor.data), tolerance) << "output " << name;
  }
  for (const auto& [name, tensor] : first.states) {
    EXPECT_LE(ir::relative_error(second.states.at(name).data, tensor.data), tolerance) << "state " << name;
  }
}

int kernel_count(const Graph& graph) {
  int count = 0;
  for (int id = 0; id < graph.size(); ++id) {
    count += !ir::has_trait(graph.node(id), ir::kLeaf) && !ir::has_trait(graph.node(id), ir::kView);
  }
  return count;
}

}  // namespace difuse::tests
