#include "models/diffusion/objective.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "models/diffusion/ddpm.h"
#include "models/presets.h"
#include "models/streams.h"
#include "models/training_step.h"
#include "models/unet.h"
#include "runtime/compile.h"
#include "tests/models/model_checks.h"
#include "tests/support/backend/cpu_run.h"

namespace difuse::models {
namespace {

using ir::DType;
using ir::Value;

/// A batch of tasks in the reference, with the noise that was drawn for it.
class TaskOf {
 public:
  static constexpr int64_t kBatch = 32, kPixels = 6;

  explicit TaskOf(const DiffusionConfig& config) {
    ir::Graph graph;
    ir::Builder build(graph);
    const ir::Type type{DType::f32, {kBatch, 1, kPixels, 1}};
    const Value seed = build.state("seed", {DType::u32, {2}}), index = build.input("index", {DType::i32, {kBatch}});
    const Value step = build.state("step", {DType::i32, {}});
    const Task task = draw_task(build, config, build.input("x0", type), seed, index, step);
    graph.set_output("input", task.input);
    graph.set_output("time", task.time);
    graph.set_output("target", task.target);
    if (task.weight.valid()) graph.set_output("weight", task.weight);
    if (task.t.valid()) graph.set_output("t", task.t);
    graph.set_output("noise", build.random_normal(seed, index, step, kNoiseStream, {1, kPixels, 1}));
    graph.set_output("draw", build.random_normal(seed, index, step, kTimestepStream, {}));
    x0_ = TestNumbers(2).vector(kBatch * kPixels);
    outputs_ = run_reference(graph, {{"x0", tensor_f32(type.shape, x0_)}, {"index", index_tensor(kBatch)}},
                             {{"seed", seed_tensor(9)}, {"step", scalar_i32(4)}})
                   .outputs;
  }

  bool has(const char* name) const { return outputs_.contains(name); }
  /// Of an image, or of a pixel.
  double operator()(const char* name, size_t at) const { return outputs_.at(name).data[at]; }
  double x0(size_t pixel) const { return x0_[pixel]; }

 private:
  std::vector<double> x0_;
  ir::TensorMap outputs_;
};

TEST(Objective, OfDdpmIsWhatThePredictionSays) {
  for (const Prediction prediction : {Prediction::eps, Prediction::x0, Prediction::v}) {
    DiffusionConfig config{NoiseSchedule::cosine, 250};
    config.prediction = prediction;
    config.rescale_timesteps = prediction == Prediction::v;
    config.unit_timesteps = prediction == Prediction::x0;
    const TaskOf task(config);
    EXPECT_FALSE(task.has("weight"));
    for (size_t pixel = 0; pixel < TaskOf::kBatch * TaskOf::kPixels; ++pixel) {
      const size_t image = pixel / TaskOf::kPixels;
      const double t = task("t", image), noise = task("noise", pixel), x0 = task.x0(pixel);
      const double bar = alpha_bars(config)[static_cast<size_t>(t)], a = std::sqrt(bar), s = std::sqrt(1 - bar);
      EXPECT_NEAR(task("input", pixel), a * x0 + s * noise, 1e-12);
      EXPECT_NEAR(task("time", image), config.unit_timesteps ? t / 250 : config.rescale_timesteps ? 4 * t : t, 1e-12);
      const double wanted = prediction == Prediction::eps  ? noise
                            : prediction == Prediction::x0 ? x0
                                                           : a * noise - s * x0;
      EXPECT_NEAR(task("target", pixel), wanted, 1e-12);
    }
  }
}

/// In x_0, min-SNR's weight is min(snr, gamma) whatever the prediction: x_0 moves so far with the answer.
TEST(Objective, MinSnrBoundsTheWeightOfX0) {
  for (const Prediction prediction : {Prediction::eps, Prediction::x0, Prediction::v}) {
    DiffusionConfig config{NoiseSchedule::linear, 1000};
    config.prediction = prediction;
    config.min_snr_gamma = 5;
    const TaskOf task(config);
    bool below = false, above = false;
    for (size_t image = 0; image < TaskOf::kBatch; ++image) {
      const double bar = alpha_bars(config)[static_cast<size_t>(task("t", image))], snr = bar / (1 - bar);
      const double moves_x0 = prediction == Prediction::eps  ? std::sqrt((1 - bar) / bar)
                              : prediction == Prediction::x0 ? 1
                                                             : std::sqrt(1 - bar);
      EXPECT_NEAR(task("weight", image), std::min(snr, 5.0) * moves_x0 * moves_x0, 1e-9);
      (snr < 5 ? below : above) = true;
    }
    EXPECT_TRUE(below && above);
  }
}

TEST(Objective, OfEdmIsThePapersLoss) {
  DiffusionConfig config;
  config.process = Process::edm;
  config.sigma_data = 0.4, config.p_mean = -0.8, config.p_std = 1.1;
  const TaskOf task(config);
  constexpr double kData = 0.4;
  for (size_t pixel = 0; pixel < TaskOf::kBatch * TaskOf::kPixels; ++pixel) {
    const size_t image = pixel / TaskOf::kPixels;
    const double sigma = std::exp(-0.8 + 1.1 * task("draw", image)), all = sigma * sigma + kData * kData;
    const double x = task.x0(pixel) + sigma * task("noise", pixel);
    // Karras et al., 2022, table 1.
    const double c_skip = kData * kData / all, c_out = sigma * kData / std::sqrt(all), c_in = 1 / std::sqrt(all);
    const double lambda = all / std::pow(sigma * kData, 2);
    EXPECT_NEAR(task("input", pixel), c_in * x, 1e-12);
    EXPECT_NEAR(task("time", image), std::log(sigma) / 4, 1e-12);
    const double answer = 0.37, denoised = c_skip * x + c_out * answer;
    EXPECT_NEAR(std::pow(answer - task("target", pixel), 2), lambda * std::pow(denoised - task.x0(pixel), 2), 1e-9);
  }
}

TEST(Objective, AnErrorOfTheAnswerIsOneOfTheNoise) {
  const DiffusionConfig plain{NoiseSchedule::linear, 100};
  for (const Prediction prediction : {Prediction::eps, Prediction::x0, Prediction::v}) {
    DiffusionConfig config = plain;
    config.prediction = prediction;
    const double bar = alpha_bars(config)[40], a = std::sqrt(bar), s = std::sqrt(1 - bar);
    const double x = 0.7, answer = 0.2, moved = 0.25;
    const auto noise = [&](double f) {
      return prediction == Prediction::eps ? f : prediction == Prediction::x0 ? (x - a * f) / s : s * x + a * f;
    };
    EXPECT_NEAR(noise_error_factors(config)[40] * (moved - answer), noise(moved) - noise(answer), 1e-12);
  }
}

/// The loss of the tiny model with classes for a batch of one image.
double loss_of(const DiffusionConfig& diffusion, double label, bool learn_sigma = false) {
  UNetConfig unet = find_preset("tiny").unet;
  unet.num_classes = 3;
  unet.learn_sigma = learn_sigma;
  ir::TensorMap inputs = training_inputs(unet, 1, 3);
  inputs.at("label").data[0] = label;
  const std::vector<double> params = parameters_without_zeros(parameter_layout(unet), 2);
  return run_reference(build_training_loss(unet, diffusion, 1), inputs, training_states(params, 1, 4))
      .outputs.at("loss")
      .data[0];
}

TEST(Objective, TheLossIsWeightedByItsTimestep) {
  ir::Graph graph;
  ir::Builder build(graph);
  graph.set_output("t",
                   build.random_int(build.state("seed", {DType::u32, {2}}), build.input("index", {DType::i32, {1}}),
                                    build.state("step", {DType::i32, {}}), kTimestepStream, {}, 1000));
  const double t =
      run_reference(graph, {{"index", index_tensor(1)}}, {{"seed", seed_tensor(7, 11)}, {"step", scalar_i32(4)}})
          .outputs.at("t")
          .data[0];
  DiffusionConfig plain, weighted;
  weighted.min_snr_gamma = 0.02;
  const double weight = loss_weights(weighted)[static_cast<size_t>(t)];
  ASSERT_NE(weight, 1) << t;
  EXPECT_NEAR(loss_of(weighted, 0), weight * loss_of(plain, 0), 1e-9);
}

TEST(Objective, ALabelThatIsDroppedIsTheLastClass) {
  DiffusionConfig dropped;
  dropped.label_dropout = 0.999999;
  EXPECT_EQ(loss_of(dropped, 0), loss_of({}, 2));
  EXPECT_NE(loss_of({}, 0), loss_of({}, 2));
}

TEST(Objective, RescaledSigmasCountTheBoundByItsTimesteps) {
  for (const Prediction prediction : {Prediction::eps, Prediction::v}) {
    DiffusionConfig diffusion{NoiseSchedule::cosine, 4000};
    diffusion.prediction = prediction;
    const double once = loss_of(diffusion, 0, true);
    diffusion.rescale_learned_sigmas = true;
    const double four_times = loss_of(diffusion, 0, true);
    diffusion.min_snr_gamma = 1e-12;  // Leaves the bound alone.
    EXPECT_NEAR(four_times - once, 0.75 * loss_of(diffusion, 0, true), 1e-6 * four_times);
  }
}

/// The losses of a short training of the tiny model on the CPU, on images that are all alike but for noise.
std::vector<double> train_tiny(const DiffusionConfig& diffusion, UNetConfig unet, int steps) {
  TrainingConfig training = find_preset("tiny").training;
  const ParameterLayout layout = parameter_layout(unet);
  const ir::Graph graph = build_training_step(unet, diffusion, training);
  const auto executor = runtime::compile(graph, {}, 1);
  const std::vector<float> start = initial_parameters(layout, {1, 0});
  ir::TensorMap states = training_states({start.begin(), start.end()}, 1);
  ir::TensorMap inputs = training_inputs(unet, training.batch, 3);
  for (size_t i = 0; i < inputs.at("pixels").data.size(); ++i) {
    double& p = inputs.at("pixels").data[i];
    p = std::floor((i % 64 < 32 ? 30 : 200) + p / 16);
  }
  for (const auto& [name, tensor] : states) executor->write_state(name, testing::encode(tensor));
  for (const auto& [name, tensor] : inputs) executor->write_input(name, testing::encode(tensor));
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    executor->run();
    float loss = 0;
    executor->read_output("loss", std::as_writable_bytes(std::span(&loss, 1)));
    losses.push_back(loss);
  }
  return losses;
}

TEST(Objective, EveryTrainingLearns) {
  DiffusionConfig edm, v{NoiseSchedule::cosine, 1000}, x0, learned{NoiseSchedule::cosine, 4000};
  edm.process = Process::edm;
  v.prediction = Prediction::v, v.min_snr_gamma = 5;
  x0.prediction = Prediction::x0, x0.label_dropout = 0.2;
  learned.rescale_timesteps = learned.rescale_learned_sigmas = true;
  for (const DiffusionConfig& diffusion : {edm, v, x0, learned}) {
    UNetConfig unet = find_preset("tiny").unet;
    if (diffusion == learned) unet.learn_sigma = true;
    if (diffusion == x0) unet.num_classes = 3;
    constexpr int kSteps = 60, kMean = 10;
    const std::vector<double> losses = train_tiny(diffusion, unet, kSteps);
    const auto mean = [&](auto begin) { return std::accumulate(begin, begin + kMean, 0.0) / kMean; };
    EXPECT_LT(mean(losses.end() - kMean), 0.6 * mean(losses.begin())) << to_string(diffusion.process);
  }
}

}  // namespace
}  // namespace difuse::models
