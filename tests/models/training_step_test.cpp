#include "models/training_step.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ir/verify.h"
#include "models/presets.h"
#include "models/unet.h"
#include "tests/models/model_checks.h"

namespace difuse::models {
namespace {

constexpr int64_t kImages = 2;

/// dLoss/dparameter against central differences of the loss, for every parameter tensor: along a direction that moves
/// all its elements, and for single elements.
void check_gradients(const UNetConfig& unet) {
  const DiffusionConfig diffusion;
  TrainingConfig training;
  training.batch = kImages;
  const ParameterLayout layout = parameter_layout(unet);
  const ir::TensorMap inputs = training_inputs(unet, kImages, 1);
  ir::TensorMap states = training_states(parameters_without_zeros(layout, 2), 1, 5);
  const ir::Graph step = build_training_step(unet, diffusion, training);
  const ir::Graph loss = build_training_loss(unet, diffusion, kImages);
  const ir::ReferenceResult result = run_reference(step, inputs, states);
  const std::vector<double>& gradient = result.outputs.at("gradient").data;
  double largest = 0;
  for (double g : gradient) largest = std::max(largest, std::abs(g));

  std::vector<double>& params = states.at("params").data;
  auto loss_at = [&] { return run_reference(loss, inputs, states).outputs.at("loss").data[0]; };
  EXPECT_EQ(loss_at(), result.outputs.at("loss").data[0]);
  TestNumbers numbers(3);
  for (size_t i = 0; i < layout.specs().size(); ++i) {
    const ParameterSpec& spec = layout.specs()[i];
    const auto begin = static_cast<size_t>(layout.offsets()[i]), count = static_cast<size_t>(spec.elements());
    double own = 0;
    for (size_t k = 0; k < count; ++k) own = std::max(own, std::abs(gradient[begin + k]));
    EXPECT_GT(own, 1e-5 * largest) << spec.name << " hardly matters: its check would be empty";
    auto check = [&](const std::vector<double>& direction, const std::string& what) {
      const std::vector<double> saved(params.begin() + layout.offsets()[i],
                                      params.begin() + layout.offsets()[i] + spec.elements());
      double norm = 0, expected = 0, reach = 0;
      for (size_t k = 0; k < count; ++k) norm += direction[k] * direction[k];
      const double h = 2e-5 / std::sqrt(norm);
      auto moved_loss = [&](double by) {
        for (size_t k = 0; k < count; ++k) params[begin + k] = saved[k] + by * direction[k];
        return loss_at();
      };
      const double difference = (moved_loss(h) - moved_loss(-h)) / (2 * h);
      std::copy(saved.begin(), saved.end(), params.begin() + layout.offsets()[i]);
      for (size_t k = 0; k < count; ++k) {
        expected += gradient[begin + k] * direction[k];
        reach = std::max(reach, std::abs(gradient[begin + k] * direction[k]));
      }
      EXPECT_NEAR(difference, expected, 1e-6 * std::max({std::abs(expected), reach, 1e-3 * largest}))
          << spec.name << ", " << what;
    };
    check(numbers.vector(spec.elements()), "a direction");
    const auto at = static_cast<size_t>((numbers() + 1) / 2 * static_cast<double>(count));
    std::vector<double> one(count, 0.0);
    one[at] = 1;
    check(one, "element " + std::to_string(at));
  }
}

TEST(WholeModelGradient, Tiny) { check_gradients(find_preset("tiny").unet); }
TEST(WholeModelGradient, AllFeatures) { check_gradients(all_features()); }

class TrainingStep : public ::testing::Test {
 protected:
  TrainingStep() {
    preset_.training.batch = kImages;
    preset_.training.optimizer.ema_decays = {0.5, 0.999};
  }
  ir::Graph graph() const { return build_training_step(preset_.unet, preset_.diffusion, preset_.training); }
  ParameterLayout layout() const { return parameter_layout(preset_.unet); }
  ir::TensorMap states() const { return training_states(parameters_without_zeros(layout(), 2), 2); }
  ir::TensorMap inputs() const { return training_inputs(preset_.unet, kImages, 1); }

  Preset preset_ = find_preset("tiny");
};

TEST_F(TrainingStep, IsAVerifiedGraphForEveryPreset) {
  for (const Preset& preset : presets()) {
    TrainingConfig training = preset.training;
    training.batch = 2;
    const ir::Graph g = build_training_step(preset.unet, preset.diffusion, training);
    ir::verify(g);
    EXPECT_EQ(g.leaves(ir::Op::input).size(), preset.unet.num_classes > 0 ? 3u : 2u);
    EXPECT_EQ(g.leaves(ir::Op::state).size(), 6u);
    EXPECT_EQ(g.outputs().size(), 5u);
  }
}

TEST_F(TrainingStep, GradientLeavesTheGapsZero) {
  const ir::ReferenceResult result = run_reference(graph(), inputs(), states());
  const ParameterLayout slices = layout();
  std::vector<bool> used(static_cast<size_t>(slices.size()), false);
  for (size_t i = 0; i < slices.specs().size(); ++i) {
    std::fill_n(used.begin() + slices.offsets()[i], slices.specs()[i].elements(), true);
  }
  for (const char* state : {"params", "adam_m", "adam_v", "ema", "ema_1"}) {
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) {
        ASSERT_EQ(result.states.at(state).data[i], 0) << state << " " << i;
      }
    }
  }
}

TEST_F(TrainingStep, FlippedImagesAreMirrored) {
  const ir::Graph g = build_training_step(preset_.unet, preset_.diffusion, preset_.training, /*flip=*/true);
  ir::verify(g);
  // Mirroring the first image by hand and leaving it alone is the same step.
  ir::TensorMap flipped = inputs(), by_hand = inputs();
  flipped["flip"] = by_hand["flip"] = ir::Tensor({ir::DType::u8, {kImages}});
  flipped["flip"].data[0] = 1;
  ir::Tensor& pixels = by_hand.at("pixels");
  const ir::Shape& shape = pixels.type.shape;
  for (int64_t row = 0; row < shape[1]; ++row) {
    for (int64_t left = 0, right = shape[2] - 1; left < right; ++left, --right) {
      for (int64_t c = 0; c < shape[3]; ++c) {
        std::swap(pixels.data[static_cast<size_t>((row * shape[2] + left) * shape[3] + c)],
                  pixels.data[static_cast<size_t>((row * shape[2] + right) * shape[3] + c)]);
      }
    }
  }
  const auto loss = [&](const ir::TensorMap& in) { return run_reference(g, in, states()).outputs.at("loss").data[0]; };
  EXPECT_EQ(loss(flipped), loss(by_hand));
  flipped["flip"].data[0] = 0;
  EXPECT_NE(loss(flipped), loss(by_hand));
}

TEST_F(TrainingStep, LossFallsAndStepsCount) {
  preset_.training.optimizer.learning_rate = 3e-3;
  const ir::Graph g = graph();
  ir::TensorMap now = states();
  double first = 0, last = 0;
  for (int i = 0; i < 40; ++i) {
    // The same draws each time: one fixed batch to learn by heart.
    now["step"] = scalar_i32(3);
    const ir::ReferenceResult result = run_reference(g, inputs(), now);
    now = result.states;
    EXPECT_EQ(now.at("step").data[0], 4);
    last = result.outputs.at("loss").data[0];
    if (i == 0) first = last;
  }
  EXPECT_LT(last, 0.5 * first);
}

TEST_F(TrainingStep, NonFiniteGradientChangesNothingButTheStep) {
  ir::TensorMap before = states();
  before.at("params").data[static_cast<size_t>(layout().offsets()[layout().find("out.2.weight")])] =
      std::numeric_limits<double>::quiet_NaN();
  const ir::ReferenceResult result = run_reference(graph(), inputs(), before);
  EXPECT_GT(result.outputs.at("nonfinite").data[0], 0);
  for (const char* state : {"params", "adam_m", "adam_v", "ema", "ema_1"}) {
    EXPECT_EQ(ir::relative_error(result.states.at(state).data, before.at(state).data), 0) << state;
  }
  EXPECT_EQ(result.states.at("step").data[0], 1);
}

TEST_F(TrainingStep, DrawsDependOnSeedStepAndIndexOnly) {
  const ir::Graph g = build_training_loss(preset_.unet, preset_.diffusion, kImages);
  ir::TensorMap at = states(), batch = inputs();
  auto loss = [&] { return run_reference(g, batch, at).outputs.at("loss").data[0]; };
  const double base = loss();
  EXPECT_EQ(loss(), base);
  at["step"] = scalar_i32(1);
  EXPECT_NE(loss(), base);
  at["step"] = scalar_i32(0);
  at["seed"] = seed_tensor(8, 11);
  EXPECT_NE(loss(), base);
  at["seed"] = seed_tensor(7, 11);

  // The mean over a batch is the mean of the losses of its images alone, each under its own index.
  const ir::Graph alone = build_training_loss(preset_.unet, preset_.diffusion, 1);
  double sum = 0;
  const ir::Tensor pixels = batch.at("pixels");
  const int64_t each = pixels.type.elements() / kImages;
  for (int64_t i = 0; i < kImages; ++i) {
    ir::Tensor image({ir::DType::u8, {1, 8, 8, 1}});
    std::copy_n(pixels.data.begin() + i * each, each, image.data.begin());
    sum += run_reference(alone, {{"pixels", image}, {"index", index_tensor(1, i)}}, at).outputs.at("loss").data[0];
  }
  EXPECT_NEAR(sum / kImages, base, 1e-14);
}

}  // namespace
}  // namespace difuse::models
