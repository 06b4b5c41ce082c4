#include "tests/fuzz/network.h"

#include <fmt/format.h>

#include <random>

#include "ir/builder.h"
#include "passes/autodiff.h"

namespace difuse::testing {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Value;

class Network {
 public:
  Network(Graph& graph, uint64_t seed) : graph_(graph), b_(graph), rng_(seed) {}

  void build() {
    const auto depth = 3 + below(6);
    Value x = b_.input("image", {DType::f32, {2, 8, 8, 8}});
    std::vector<Value> before;
    for (uint64_t i = 0; i < depth; ++i) {
      x = convolution(below(3) == 0 ? x : activation(below(2) == 0 ? x : norm(x)));
      if (!before.empty() && below(3) == 0) x = b_.concat({x, before[below(before.size())]}, 3);
      const Value other = before.empty() ? x : before[below(before.size())];
      if (b_.shape(other) == b_.shape(x) && below(2) == 0) x = b_.add(x, other);
      before.push_back(x);
    }
    const Value loss = b_.mean_all(b_.square(x));
    const auto gradients = passes::differentiate(b_, loss, parameters_);
    graph_.set_output("loss", loss);
    for (size_t i = 0; i < gradients.size(); ++i) graph_.set_output(fmt::format("gradient{}", i), gradients[i]);
    if (below(3) == 0) graph_.set_output("inside", before[below(before.size())]);
  }

 private:
  uint64_t below(uint64_t n) { return rng_() % n; }
  Value parameter(ir::Shape shape) {
    const std::string name = fmt::format("parameter{}", parameters_.size());
    parameters_.push_back(b_.input(name, {DType::f32, std::move(shape)}));
    return parameters_.back();
  }

  Value convolution(Value x) {
    const int64_t taps = below(2) == 0 ? 1 : 3, channels = b_.shape(x)[3];
    const Value y = b_.conv_fprop(x, parameter({8, taps, taps, channels}), 1, taps / 2);
    return b_.mul(y, 1.0 / static_cast<double>(taps * channels));
  }

  Value norm(Value x) {
    const ir::Shape s = b_.shape(x);
    const auto stats = b_.group_finish({b_.channel_moments(x)}, {4, 1e-2, s[1], s[2]});
    const Value scale = b_.mul(stats.rstd, b_.broadcast_channels(parameter({s[3]}), b_.shape(stats.rstd)));
    const Value centred = b_.sub(x, b_.broadcast_image_channels(stats.mean, s));
    return b_.add(b_.mul(centred, b_.broadcast_image_channels(scale, s)), b_.broadcast_channels(parameter({s[3]}), s));
  }

  Value activation(Value x) {
    switch (below(4)) {
      case 0:
        return b_.max(x, 0.0);
      case 1:
        return b_.tanh(x);
      case 2:
        return b_.mul(x, b_.sigmoid(b_.mul(x, b_.broadcast_channels(parameter({b_.shape(x)[3]}), b_.shape(x)))));
      default:
        return b_.silu(x);
    }
  }

  Graph& graph_;
  Builder b_;
  std::mt19937_64 rng_;
  std::vector<Value> parameters_;
};

}  // namespace

Graph random_network(uint64_t seed) {
  Graph graph("network");
  Network(graph, seed).build();
  return graph;
}

}  // namespace difuse::testing
