// The UNet and the training step against PyTorch in float64 (tests/golden/): the fp64 reference to 1e-9, the CPU
// backend, which computes in f32, to 1e-5.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "ir/error.h"
#include "ir/options.h"
#include "ir/reference.h"
#include "runtime/compile.h"
#include "tests/models/golden_file.h"
#include "tests/models/tolerance.h"
#include "tests/support/backend/emulated_executor.h"
#include "tests/support/backend/gpu.h"

namespace difuse::models {
namespace {

constexpr double kReferenceTolerance = 1e-9;

/// Runs a graph by the fp64 reference.
class Reference {
 public:
  Reference(ir::Graph graph, ir::TensorMap states) : graph_(std::move(graph)), states_(std::move(states)) {}

  void run(const ir::TensorMap& inputs) {
    ir::ReferenceResult result = ir::run_reference(graph_, inputs, states_);
    outputs_ = std::move(result.outputs);
    states_ = std::move(result.states);
  }
  std::vector<double> output(const std::string& name) const { return outputs_.at(name).data; }
  std::vector<double> state(const std::string& name) const { return states_.at(name).data; }

 private:
  ir::Graph graph_;
  ir::TensorMap states_, outputs_;
};

template <class T>
std::vector<std::byte> to_bytes(const std::vector<double>& values) {
  const std::vector<T> elements(values.begin(), values.end());
  const auto bytes = std::as_bytes(std::span(elements));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> to_bytes(const ir::Tensor& tensor) {
  switch (tensor.type.dtype) {
    case ir::DType::f32:
      return to_bytes<float>(tensor.data);
    case ir::DType::i32:
      return to_bytes<int32_t>(tensor.data);
    case ir::DType::u32:
      return to_bytes<uint32_t>(tensor.data);
    case ir::DType::u8:
      return to_bytes<uint8_t>(tensor.data);
    default:
      throw Error(fmt::format("goldens have no leaves of type {}", ir::to_string(tensor.type)));
  }
}

runtime::CompileSettings in_f32(bool fuse) {
  runtime::CompileSettings settings;
  settings.fuse = fuse;
  return settings;
}

/// Runs a graph by a backend in f32; outputs are f32.
class Compiled {
 public:
  Compiled(const ir::Graph& graph, const ir::TensorMap& states, const runtime::Target& target, bool fuse = true)
      : Compiled(runtime::compile(graph, ir::Options{}, target, in_f32(fuse)), states) {}
  Compiled(std::unique_ptr<runtime::Executor> executor, const ir::TensorMap& states) : executor_(std::move(executor)) {
    const ir::Graph& graph = executor_->graph();
    for (const auto& [name, value] : graph.outputs()) sizes_[name] = graph.type(value).elements();
    for (const auto& [name, tensor] : states) executor_->write_state(name, to_bytes(tensor));
  }

  void run(const ir::TensorMap& inputs) {
    for (const auto& [name, tensor] : inputs) executor_->write_input(name, to_bytes(tensor));
    executor_->run();
  }
  std::vector<double> output(const std::string& name) const {
    std::vector<float> values(static_cast<size_t>(sizes_.at(name)));
    executor_->read_output(name, std::as_writable_bytes(std::span(values)));
    return {values.begin(), values.end()};
  }

 private:
  std::unique_ptr<runtime::Executor> executor_;
  std::map<std::string, int64_t> sizes_;  // of the outputs, in elements
};

template <class Machine>
void expect_model(Machine& machine, const ir::Graph& graph, const GoldenFile& golden, double tolerance) {
  machine.run(golden_model_leaves(graph, ir::Op::input, golden));
  const UNetConfig& unet = golden.unet();
  const ir::Shape shape{golden.training().batch, unet.image_height, unet.image_width, unet.out_channels()};
  expect_near(machine.output("output"), golden.values("model/output", shape), tolerance, "output");
  expect_near(machine.output("loss"), golden.values("model/loss", {}), tolerance, "loss");
  expect_parameters_near(golden.layout(), machine.output("gradient"), golden.packed("grad"), tolerance, "gradient");
}

/// Runs the ten steps.
template <class Machine>
void expect_curve(Machine& machine, const ir::Graph& graph, const GoldenFile& golden, double tolerance) {
  const std::vector<std::string> scalars = {"loss", "grad_norm", "lr"};
  std::map<std::string, std::vector<double>> curve;
  for (int64_t step = 0; step < kGoldenSteps; ++step) {
    machine.run(golden_step_inputs(graph, golden, step));
    for (const std::string& name : scalars) curve[name].push_back(machine.output(name)[0]);
    EXPECT_EQ(machine.output("nonfinite")[0], 0);
  }
  for (const std::string& name : scalars) {
    expect_near(curve[name], golden.values("curve/" + name, {kGoldenSteps}), tolerance, name);
  }
}

class TorchOracle : public ::testing::TestWithParam<std::string> {};

TEST_P(TorchOracle, ReferenceRunsTheModel) {
  const GoldenFile golden(GetParam());
  const ir::Graph graph = golden_model_graph(golden);
  Reference reference(graph, golden_model_leaves(graph, ir::Op::state, golden));
  expect_model(reference, graph, golden, kReferenceTolerance);
}

void expect_target_runs_the_model(const std::string& name, const runtime::Target& target) {
  const GoldenFile golden(name);
  const ir::Graph graph = golden_model_graph(golden);
  for (bool fuse : {true, false}) {
    SCOPED_TRACE(fuse ? "fused" : "unfused");
    Compiled machine(graph, golden_model_leaves(graph, ir::Op::state, golden), target, fuse);
    expect_model(machine, graph, golden, kF32Tolerance);
  }
}

TEST_P(TorchOracle, CpuRunsTheModel) { expect_target_runs_the_model(GetParam(), kThreads); }

TEST_P(TorchOracle, ReferenceTrains) {
  const GoldenFile golden(GetParam());
  const ir::Graph graph = build_training_step(golden.unet(), golden.diffusion(), golden.training());
  Reference reference(graph, golden_start_states(graph, golden));
  expect_curve(reference, graph, golden, kReferenceTolerance);
  EXPECT_EQ(reference.state("step")[0], kGoldenSteps);
  auto expect_state = [&](const std::string& name, const std::string& prefix) {
    expect_parameters_near(golden.layout(), reference.state(name), golden.packed(prefix), kReferenceTolerance, name);
  };
  expect_state("params", "final");
  for (size_t i = 0; i < golden.training().optimizer.ema_decays.size(); ++i) expect_state(ema_state(i), ema_state(i));
}

// Parameters are not compared here: Adam divides a gradient by its own size, so one that is zero but for rounding (a
// key's bias, to which softmax is blind) moves its parameter as far as any other. The losses do not see it.
void expect_target_trains(const std::string& name, const runtime::Target& target) {
  const GoldenFile golden(name);
  const ir::Graph graph = build_training_step(golden.unet(), golden.diffusion(), golden.training());
  Compiled machine(graph, golden_start_states(graph, golden), target);
  expect_curve(machine, graph, golden, kF32Tolerance);
}

TEST_P(TorchOracle, CpuTrains) { expect_target_trains(GetParam(), kThreads); }

/// The model's CUDA kernels, run by the emulator.
void expect_emulator_runs_the_model(const std::string& name, bool fuse) {
  const GoldenFile golden(name);
  const ir::Graph graph = golden_model_graph(golden);
  auto plan = runtime::plan_cuda(graph, ir::Options{}, *ir::find_device_spec("h100"), in_f32(fuse));
  Compiled machine(std::make_unique<testing::EmulatedExecutor>(std::move(plan)),
                   golden_model_leaves(graph, ir::Op::state, golden));
  expect_model(machine, graph, golden, kF32Tolerance);
}

TEST(EmulatedTorchOracle, RunsEveryFeature) { expect_emulator_runs_the_model("everything", /*fuse=*/true); }

class SlowEmulatedTorchOracle : public ::testing::TestWithParam<std::string> {};

TEST_P(SlowEmulatedTorchOracle, RunsTheModel) {
  for (bool fuse : {true, false}) {
    SCOPED_TRACE(fuse ? "fused" : "unfused");
    expect_emulator_runs_the_model(GetParam(), fuse);
  }
}

class GpuTorchOracle : public ::testing::TestWithParam<std::string> {};

TEST_P(GpuTorchOracle, RunsTheModel) {
  DIFUSE_NEED_GPU(gpu);
  expect_target_runs_the_model(GetParam(), gpu);
}

TEST_P(GpuTorchOracle, Trains) {
  DIFUSE_NEED_GPU(gpu);
  expect_target_trains(GetParam(), gpu);
}

INSTANTIATE_TEST_SUITE_P(Files, TorchOracle, ::testing::ValuesIn(golden_names()),
                         [](const auto& golden) { return golden.param; });
INSTANTIATE_TEST_SUITE_P(Files, SlowEmulatedTorchOracle, ::testing::ValuesIn(golden_names()),
                         [](const auto& golden) { return golden.param; });
INSTANTIATE_TEST_SUITE_P(Files, GpuTorchOracle, ::testing::ValuesIn(golden_names()),
                         [](const auto& golden) { return golden.param; });

}  // namespace
}  // namespace difuse::models
