#include "models/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/models/model_checks.h"
#include "tests/support/temp_folder.h"

namespace difuse::models {
namespace {

using ir::DType;

/// The optimizer alone, on a gradient that is an input.
ir::Graph optimizer_graph(const OptimizerConfig& config, int64_t size) {
  ir::Graph graph("optimizer");
  ir::Builder build(graph);
  const ir::Type type{DType::f32, {size}};
  const ir::Value step = build.state("step", {DType::i32, {}});
  const OptimizerReport report =
      add_optimizer(build, config, build.state("params", type), build.input("gradient", type), step);
  graph.set_update("step", build.add(step, 1.0));
  graph.set_output("grad_norm", report.gradient_norm);
  graph.set_output("nonfinite", report.nonfinite);
  graph.set_output("lr", report.learning_rate);
  return graph;
}

ir::ReferenceResult run(const ir::Graph& graph, std::vector<double> gradient, const ir::TensorMap& states) {
  const auto size = static_cast<int64_t>(gradient.size());
  return run_reference(graph, {{"gradient", tensor_f32({size}, std::move(gradient))}}, states);
}

TEST(Optimizer, AdamWByHand) {
  OptimizerConfig config;
  config.learning_rate = 0.1, config.beta1 = 0.8, config.beta2 = 0.9, config.weight_decay = 0.05;
  config.ema_decays = {};
  const ir::Graph graph = optimizer_graph(config, 1);
  ir::TensorMap states = training_states({2.0}, 0);
  double p = 2, m = 0, v = 0;
  const std::vector<double> gradients{0.5, -1.25, 3, 0.01, -0.2};
  for (size_t i = 0; i < gradients.size(); ++i) {
    const double g = gradients[i], t = static_cast<double>(i + 1);
    m = 0.8 * m + 0.2 * g;
    v = 0.9 * v + 0.1 * g * g;
    p -= 0.1 * 0.05 * p;
    p -= 0.1 * (m / (1 - std::pow(0.8, t))) / (std::sqrt(v / (1 - std::pow(0.9, t))) + 1e-8);
    states = run(graph, {g}, states).states;
    EXPECT_NEAR(states.at("params").data[0], p, 1e-14);
    EXPECT_NEAR(states.at("adam_m").data[0], m, 1e-15);
    EXPECT_NEAR(states.at("adam_v").data[0], v, 1e-15);
    EXPECT_EQ(states.at("step").data[0], t);
  }
}

TEST(Optimizer, FirstStepOfAdamIsTheLearningRate) {
  OptimizerConfig config;
  config.learning_rate = 1e-3;
  const ir::ReferenceResult result = run(optimizer_graph(config, 2), {1e-3, -40}, training_states({0, 0}, 1));
  EXPECT_NEAR(result.states.at("params").data[0], -1e-3, 1e-7);
  EXPECT_NEAR(result.states.at("params").data[1], 1e-3, 1e-12);
}

TEST(Optimizer, AveragesRampUp) {
  OptimizerConfig config;
  config.learning_rate = 0, config.ema_decays = {0.9, 0.9999};
  const ir::Graph graph = optimizer_graph(config, 1);
  ir::TensorMap states = training_states({1}, 2);
  double ema = 0, slow = 0;
  for (int step = 0; step < 100; ++step) {
    const double ramp = (1.0 + step) / (10.0 + step);
    ema += (1 - std::min(0.9, ramp)) * (1 - ema);
    slow += (1 - std::min(0.9999, ramp)) * (1 - slow);
    states = run(graph, {0}, states).states;
    EXPECT_NEAR(states.at("ema").data[0], ema, 1e-14);
    EXPECT_NEAR(states.at("ema_1").data[0], slow, 1e-14);
  }
  states["step"] = scalar_i32(1000000);
  states["ema_1"].data[0] = 0;
  EXPECT_NEAR(run(graph, {0}, states).states.at("ema_1").data[0], 1e-4, 1e-15);
}

TEST(Optimizer, ClipsByTheGlobalNorm) {
  OptimizerConfig config;
  config.clip_norm = 1, config.beta1 = 0;
  const ir::Graph graph = optimizer_graph(config, 2);
  const ir::ReferenceResult large = run(graph, {3, 4}, training_states({0, 0}, 1));
  EXPECT_EQ(large.outputs.at("grad_norm").data[0], 5);
  EXPECT_NEAR(large.states.at("adam_m").data[0], 0.6, 1e-6);
  EXPECT_NEAR(large.states.at("adam_m").data[1], 0.8, 1e-6);
  const ir::ReferenceResult small = run(graph, {0.3, 0.4}, training_states({0, 0}, 1));
  EXPECT_EQ(small.states.at("adam_m").data[0], 0.3);
  config.clip_norm = 0;
  EXPECT_EQ(run(optimizer_graph(config, 2), {3, 4}, training_states({0, 0}, 1)).states.at("adam_m").data[0], 3);
}

TEST(Optimizer, WarmUpAndCosine) {
  OptimizerConfig config;
  config.learning_rate = 0.5, config.warmup = 4;
  const ir::Graph warm = optimizer_graph(config, 1);
  config.schedule = LearningRateSchedule::cosine, config.warmup = 0, config.total_steps = 10;
  const ir::Graph cosine = optimizer_graph(config, 1);
  auto rate = [](const ir::Graph& graph, int64_t step) {
    return run(graph, {0}, training_states({0}, 1, step)).outputs.at("lr").data[0];
  };
  EXPECT_EQ(rate(warm, 0), 0.125);
  EXPECT_EQ(rate(warm, 3), 0.5);
  EXPECT_EQ(rate(warm, 1000), 0.5);
  EXPECT_EQ(rate(cosine, 0), 0.5);
  EXPECT_NEAR(rate(cosine, 5), 0.25, 1e-15);
  EXPECT_NEAR(rate(cosine, 10), 0, 1e-15);
  EXPECT_NEAR(rate(cosine, 20), 0, 1e-15);
}

TEST(Optimizer, CountsNonFiniteElementsAndRefusesTheStep) {
  OptimizerConfig config;
  config.clip_norm = 1;
  const double infinity = std::numeric_limits<double>::infinity();
  const ir::Graph graph = optimizer_graph(config, 3);
  const ir::TensorMap before = training_states({1, 2, 3}, 1);
  const ir::ReferenceResult result = run(graph, {1, infinity, std::nan("")}, before);
  EXPECT_EQ(result.outputs.at("nonfinite").data[0], 2);
  for (const char* state : {"params", "adam_m", "adam_v", "ema"}) {
    EXPECT_EQ(result.states.at(state).data, before.at(state).data) << state;
  }
  EXPECT_EQ(result.states.at("step").data[0], 1);
  // Finite elements whose norm overflows would leave infinite moments for good.
  const ir::ReferenceResult overflow = run(graph, {1e200, 1, 1}, before);
  EXPECT_EQ(overflow.outputs.at("nonfinite").data[0], 1);
  EXPECT_EQ(overflow.states.at("params").data, before.at("params").data);
  EXPECT_EQ(run(graph, {1, 1, 1}, before).outputs.at("nonfinite").data[0], 0);
}

TEST(Optimizer, RefusesSettingsThatCannotWork) {
  auto refusal = [](auto change) {
    OptimizerConfig config;
    change(config);
    return test::error_of([&] { check(config); });
  };
  EXPECT_CONTAINS(refusal([](OptimizerConfig& c) { c.learning_rate = -1; }), "learning rate is -1");
  EXPECT_CONTAINS(refusal([](OptimizerConfig& c) { c.beta2 = 1; }), "beta is 1");
  EXPECT_CONTAINS(refusal([](OptimizerConfig& c) { c.ema_decays = {0.9, 1}; }), "EMA decay is 1");
  EXPECT_CONTAINS(refusal([](OptimizerConfig& c) { c.warmup = -1; }), "-1 steps of warm-up");
  EXPECT_CONTAINS(refusal([](OptimizerConfig& c) { c.schedule = LearningRateSchedule::cosine; }), "number of steps");
  EXPECT_CONTAINS(refusal([](OptimizerConfig& c) { c.clip_norm = std::nan(""); }), "clipping norm");
}

}  // namespace
}  // namespace difuse::models
