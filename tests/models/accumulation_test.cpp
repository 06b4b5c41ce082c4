// Gradient accumulation: k runs on micro-batches are one step on all their images.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "ir/error.h"
#include "ir/verify.h"
#include "runtime/compile.h"
#include "tests/models/golden_file.h"
#include "tests/models/model_checks.h"
#include "tests/models/step_case.h"
#include "tests/support/temp_folder.h"

namespace difuse::models {
namespace {

constexpr int64_t kRuns = 4, kMicroBatch = 4, kBatch = kRuns * kMicroBatch;
const std::vector<std::string> kCarried = {"params", "adam_m", "adam_v", "ema", "step", "seed"};

class Accumulation : public ::testing::Test {
 protected:
  Accumulation() : whole_(step(kBatch, 1)), parts_(step(kMicroBatch, kRuns)) {}

  /// With dropout, classes and a learned variance: everything that is drawn or looked up by image.
  static StepCase step(int64_t batch, int64_t accumulate) {
    UNetConfig unet = all_features();
    unet.learn_sigma = true;
    TrainingConfig training;
    training.batch = batch, training.accumulate = accumulate;
    training.optimizer.clip_norm = 0.5, training.optimizer.weight_decay = 0.01;
    training.optimizer.learning_rate = 1e-3;
    return mid_training_step(unet, {NoiseSchedule::cosine, 1000}, training);
  }

  /// What the caller gives to run `micro` of a step.
  ir::TensorMap micro_inputs(int64_t micro) const { return images_of(whole_.inputs, micro * kMicroBatch, kMicroBatch); }
  ir::TensorMap start() const {
    ir::TensorMap states = parts_.states;
    for (const std::string& name : kCarried) states.at(name) = whole_.states.at(name);
    return states;
  }

  StepCase whole_, parts_;
};

TEST_F(Accumulation, IsAVerifiedGraphWithTwoMoreStates) {
  ir::verify(parts_.graph);
  EXPECT_EQ(parts_.graph.leaves(ir::Op::state).size(), whole_.graph.leaves(ir::Op::state).size() + 2);
  EXPECT_EQ(parts_.graph.type(parts_.graph.find_state("micro")), (ir::Type{ir::DType::i32, {}}));
  EXPECT_EQ(parts_.graph.type(parts_.graph.find_state("accumulated")),
            whole_.graph.type(whole_.graph.find_state("params")));
  EXPECT_FALSE(whole_.graph.find_state("micro").valid());
}

TEST_F(Accumulation, IsOneStepOnAllImages) {
  ir::TensorMap whole = whole_.states, parts = start();
  for (int step = 0; step < 2; ++step) {  // the second starts from what the first left
    const ir::ReferenceResult want = ir::run_reference(whole_.graph, whole_.inputs, whole);
    ir::ReferenceResult got;
    double loss = 0;
    for (int64_t micro = 0; micro < kRuns; ++micro) {
      EXPECT_EQ(parts.at("micro").data[0], static_cast<double>(micro));
      got = ir::run_reference(parts_.graph, micro_inputs(micro), parts);
      loss += got.outputs.at("loss").data[0] / kRuns;
      if (micro + 1 < kRuns) {
        for (const std::string& name : kCarried) EXPECT_EQ(got.states.at(name).data, parts.at(name).data) << name;
        EXPECT_EQ(got.states.at("accumulated").data, got.outputs.at("gradient").data);
      }
      parts = got.states;
    }
    EXPECT_NEAR(loss, want.outputs.at("loss").data[0], 1e-12 * loss);
    for (const char* name : {"gradient", "grad_norm", "nonfinite", "lr"}) {
      EXPECT_LE(ir::relative_error(got.outputs.at(name).data, want.outputs.at(name).data), 1e-12) << name;
    }
    for (const std::string& name : kCarried) {
      EXPECT_LE(ir::relative_error(got.states.at(name).data, want.states.at(name).data), 1e-12) << name;
    }
    EXPECT_EQ(got.states.at("micro").data[0], 0);
    for (double sum : got.states.at("accumulated").data) ASSERT_EQ(sum, 0);
    whole = want.states;
  }
}

// Sums over 16 images and over 4 sums of 4 differ in their rounding.
TEST_F(Accumulation, IsOneStepOnAllImagesOnTheCpu) {
  constexpr double kTolerance = 1e-6;
  const auto whole = runtime::compile(whole_.graph, {}, 2);
  const testing::CpuRun want = testing::run(*whole, whole_.inputs, whole_.states);
  const auto parts = runtime::compile(parts_.graph, {}, 2);
  ir::TensorMap states = start();
  testing::CpuRun got;
  double loss = 0;
  auto tensor = [](const ir::Graph& graph, const testing::CpuRun& run, const char* output) {
    for (const auto& [name, value] : graph.outputs()) {
      if (name == output) return testing::decode(graph.type(value), run.outputs.at(name));
    }
    throw Error("no such output");
  };
  auto state = [](const ir::Graph& graph, const testing::CpuRun& run, const std::string& name) {
    return testing::decode(graph.type(graph.find_state(name)), run.states.at(name));
  };
  for (int64_t micro = 0; micro < kRuns; ++micro) {
    got = testing::run(*parts, micro_inputs(micro), states);
    loss += tensor(parts_.graph, got, "loss").data[0] / kRuns;
    for (auto& [name, value] : states) value = state(parts_.graph, got, name);
    if (micro + 1 < kRuns) {
      for (const std::string& name : kCarried) EXPECT_EQ(states.at(name).data, start().at(name).data) << name;
    }
  }
  EXPECT_NEAR(loss, tensor(whole_.graph, want, "loss").data[0], kTolerance * loss);
  expect_parameters_near(whole_.layout, tensor(parts_.graph, got, "gradient").data,
                         tensor(whole_.graph, want, "gradient").data, kTolerance, "gradient");
  for (const char* name : {"params", "adam_m", "adam_v", "ema"}) {
    expect_parameters_near(whole_.layout, states.at(name).data, state(whole_.graph, want, name).data, kTolerance, name);
  }
  EXPECT_EQ(states.at("step").data[0], 322);
  EXPECT_EQ(states.at("micro").data[0], 0);
}

TEST_F(Accumulation, OneBadMicroBatchSpoilsItsStepAlone) {
  const ir::TensorMap before = start();
  ir::TensorMap states = before;
  // As a first run with an overflowing gradient leaves it.
  states.at("micro").data[0] = 1;
  states.at("accumulated").data[static_cast<size_t>(parts_.layout.offsets()[3])] =
      std::numeric_limits<double>::infinity();
  for (int64_t micro = 1; micro < kRuns; ++micro) {
    const ir::ReferenceResult result = ir::run_reference(parts_.graph, micro_inputs(micro), states);
    EXPECT_EQ(result.outputs.at("nonfinite").data[0], 1);
    EXPECT_EQ(result.states.at("step").data[0], micro + 1 < kRuns ? 321 : 322);
    states = result.states;
  }
  for (const char* name : {"params", "adam_m", "adam_v", "ema"}) {
    EXPECT_EQ(states.at(name).data, before.at(name).data) << name;
  }
  EXPECT_EQ(states.at("micro").data[0], 0);
  const ir::ReferenceResult next = ir::run_reference(parts_.graph, micro_inputs(0), states);
  EXPECT_EQ(next.outputs.at("nonfinite").data[0], 0);
}

TEST(AccumulationSettings, AreChecked) {
  TrainingConfig training;
  training.accumulate = 0;
  EXPECT_CONTAINS(test::error_of([&] { build_training_step(all_features(), {}, training); }), "a step of 0 batches");
}

}  // namespace
}  // namespace difuse::models
