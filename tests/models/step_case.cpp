#include "tests/models/step_case.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "models/presets.h"
#include "models/unet.h"
#include "runtime/compile.h"
#include "tests/models/golden_file.h"
#include "tests/support/op_rows.h"

namespace difuse::models {

using testing::CpuRun;

namespace {
constexpr uint32_t kSeed = 77;
}  // namespace

StepCase mid_training_step(const UNetConfig& unet, const DiffusionConfig& diffusion, const TrainingConfig& training) {
  StepCase step{parameter_layout(unet), build_training_step(unet, diffusion, training), {}, {}};
  step.inputs = testing::random_leaves(step.graph, ir::Op::input, kSeed);
  for (size_t i = 0; i < step.inputs.at("index").data.size(); ++i) {
    step.inputs.at("index").data[i] = static_cast<double>(i);
  }
  std::mt19937_64 rng(kSeed);
  for (double& p : step.inputs.at("pixels").data) p = static_cast<double>(rng() % 256);
  if (unet.num_classes > 0) {
    for (double& label : step.inputs.at("label").data) label = std::fmod(label, static_cast<double>(unet.num_classes));
  }
  step.states = testing::random_leaves(step.graph, ir::Op::state, kSeed);
  const std::vector<float> start = initial_parameters(step.layout, {kSeed, 0});
  std::normal_distribution<float> normal;
  auto fill = [&](const std::string& state, auto value) {
    auto& data = step.states.at(state).data;
    std::fill(data.begin(), data.end(), 0.0);  // the gaps between slices
    for (size_t p = 0; p < step.layout.specs().size(); ++p) {
      const auto begin = static_cast<size_t>(step.layout.offsets()[p]);
      const auto count = static_cast<size_t>(step.layout.specs()[p].elements());
      for (size_t i = begin; i < begin + count; ++i) data[i] = static_cast<double>(static_cast<float>(value(i)));
    }
  };
  fill("params", [&](size_t i) { return start[i] + 0.05f * normal(rng); });
  fill("adam_m", [&](size_t) { return 1e-3f * normal(rng); });
  fill("adam_v", [&](size_t) { return 1e-5f * (1 + normal(rng) * normal(rng)); });
  for (double& v : step.states.at("adam_v").data) v = std::abs(v);
  for (size_t i = 0; i < training.optimizer.ema_decays.size(); ++i) {
    fill(ema_state(i), [&](size_t at) { return start[at]; });
  }
  for (auto& [name, tensor] : step.states) {
    if (is_within_step(name)) std::ranges::fill(tensor.data, 0.0);
  }
  step.states.at("step").data[0] = 321;
  return step;
}

StepCase mid_training_step(const char* model, int64_t batch) {
  Preset preset = find_preset(model);
  preset.training.batch = batch;
  return mid_training_step(preset.unet, preset.diffusion, preset.training);
}

ir::TensorMap images_of(const ir::TensorMap& inputs, int64_t first, int64_t count) {
  ir::TensorMap part;
  for (const auto& [name, tensor] : inputs) {
    ir::Type type = tensor.type;
    const int64_t each = type.elements() / type.shape[0];
    type.shape[0] = count;
    const auto begin = tensor.data.begin() + first * each;
    part.emplace(name, ir::Tensor(type, std::vector<double>(begin, begin + count * each)));
  }
  return part;
}

void expect_cpu_agrees(const StepCase& step, double tolerance) { expect_agrees(step, 2, tolerance); }

void expect_agrees(const StepCase& step, const runtime::Target& target, double tolerance) {
  const auto want = ir::run_reference(step.graph, step.inputs, step.states);
  for (bool fuse : {true, false}) {
    SCOPED_TRACE(fuse ? "fused" : "unfused");
    const auto executor = runtime::compile(step.graph, {}, target, {.fuse = fuse});
    const CpuRun got = testing::run(*executor, step.inputs, step.states);
    for (const char* scalar : {"loss", "grad_norm", "nonfinite", "lr"}) {
      const ir::Tensor& w = want.outputs.at(scalar);
      EXPECT_LE(ir::relative_error(testing::decode(w.type, got.outputs.at(scalar)).data, w.data), tolerance) << scalar;
    }
    const auto expect_packed = [&](const ir::Tensor& w, const testing::Bytes& bytes, const char* name) {
      expect_parameters_near(step.layout, testing::decode(w.type, bytes).data, w.data, tolerance, name);
    };
    expect_packed(want.outputs.at("gradient"), got.outputs.at("gradient"), "gradient");
    for (const char* state : {"params", "adam_m", "adam_v", "ema"}) {
      expect_packed(want.states.at(state), got.states.at(state), state);
    }
    EXPECT_EQ(testing::decode({ir::DType::i32, {}}, got.states.at("step")).data[0], 322);
  }
}

}  // namespace difuse::models
