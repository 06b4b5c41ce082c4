#include "models/training_step.h"

#include <fmt/format.h>

#include "ir/error.h"
#include "models/streams.h"
#include "models/unet.h"
#include "passes/autodiff.h"

namespace difuse::models {
namespace {

using ir::DType;
using ir::Value;

void check_training(const UNetConfig& unet, const DiffusionConfig& diffusion, int64_t batch) {
  check(unet);
  check(diffusion);
  if (batch < 1) {
    throw Error(fmt::format("a batch of {}", batch), "choose at least 1", ExitCode::wrong_usage);
  }
  if (unet.learn_sigma) {
    throw Error("training a model with a learned variance is not supported",
                "set learn_sigma to false; sampling from such a model works", ExitCode::wrong_usage);
  }
}

struct Loss {
  Value loss, params, step;
  std::vector<Value> views;  ///< of the parameters, in the order of the layout
};

/// Pixels 0 .. 255 become -1 .. 1.
Value normalise(ir::Builder& build, Value pixels) {
  return build.sub(build.mul(build.cast(pixels, DType::f32), 1 / 127.5), 1.0);
}

Loss add_loss(ir::Builder& build, const UNetConfig& unet, const DiffusionConfig& diffusion, int64_t batch,
              const ParameterLayout& layout) {
  const ir::Shape sample{unet.image_height, unet.image_width, unet.image_channels};
  const Value pixels = build.input("pixels", {DType::u8, {batch, sample[0], sample[1], sample[2]}});
  const Value index = build.input("index", {DType::i32, {batch}});
  const Value seed = build.state("seed", {DType::u32, {2}});
  const Value step = build.state("step", {DType::i32, {}});
  const Value params = build.state("params", {DType::f32, {layout.size()}});

  const Value t = build.random_int(seed, index, step, kTimestepStream, {}, diffusion.timesteps);
  const Value noise = build.random_normal(seed, index, step, kNoiseStream, sample);
  UNetInputs inputs;
  inputs.x = diffuse_image(build, diffusion, normalise(build, pixels), noise, t);
  inputs.timesteps = build.cast(t, DType::f32);
  if (unet.num_classes > 0) inputs.labels = build.input("label", {DType::i32, {batch}});
  if (unet.dropout > 0) inputs.dropout = RandomKey{seed, index, step};
  PackedParameters parameters(build, layout, params);
  const Value eps = build_unet(build, parameters, unet, inputs);

  // Image by image, then over the batch: an image's own sum depends on nothing else.
  const Value per_image = build.reduce_sum(build.square(build.sub(eps, noise)), {1, 2, 3});
  const double count = static_cast<double>(batch) * static_cast<double>(ir::element_count(sample));
  return {build.mul(build.sum_all(per_image), 1 / count), params, step, parameters.views()};
}

}  // namespace

ir::Graph build_training_step(const UNetConfig& unet, const DiffusionConfig& diffusion, const TrainingConfig& config) {
  check_training(unet, diffusion, config.batch);
  check(config.optimizer);
  const ParameterLayout layout = parameter_layout(unet);
  ir::Graph graph("training_step");
  ir::Builder build(graph);
  const Loss loss = add_loss(build, unet, diffusion, config.batch, layout);
  const std::vector<Value> gradients = passes::differentiate(build, loss.loss, loss.views);
  const Value gradient = build.pack(gradients, layout.offsets(), layout.size());
  const OptimizerReport report = add_optimizer(build, config.optimizer, loss.params, gradient, loss.step);
  graph.set_update("step", build.add(loss.step, 1.0));
  graph.set_output("loss", loss.loss);
  graph.set_output("grad_norm", report.gradient_norm);
  graph.set_output("nonfinite", report.nonfinite);
  graph.set_output("gradient", gradient);
  graph.set_output("lr", report.learning_rate);
  return graph;
}

ir::Graph build_training_loss(const UNetConfig& unet, const DiffusionConfig& diffusion, int64_t batch) {
  check_training(unet, diffusion, batch);
  const ParameterLayout layout = parameter_layout(unet);
  ir::Graph graph("training_loss");
  ir::Builder build(graph);
  graph.set_output("loss", add_loss(build, unet, diffusion, batch, layout).loss);
  return graph;
}

}  // namespace difuse::models
