#include "models/training_step.h"

#include <fmt/format.h>

#include "ir/error.h"
#include "models/diffusion/learned_variance.h"
#include "models/diffusion/objective.h"
#include "models/low_res.h"
#include "models/pixels.h"
#include "models/streams.h"
#include "models/unet.h"
#include "passes/autodiff.h"

namespace difuse::models {
namespace {

using ir::DType;
using ir::Value;

constexpr const char* kMicro = "micro";
constexpr const char* kAccumulated = "accumulated";

void check_training(const UNetConfig& unet, const DiffusionConfig& diffusion, int64_t batch) {
  check(unet);
  check_model(diffusion, unet.num_classes, unet.learn_sigma);
  if (batch < 1) {
    throw Error(fmt::format("a batch of {}", batch), "choose at least 1", ExitCode::wrong_usage);
  }
}

struct Loss {
  Value loss, params, step;
  std::vector<Value> views;  ///< Of the parameters, in the order of the layout.
  std::vector<Value> held;   ///< Constants to the gradient.
};

/// Pixels 0 .. 255 become -1 .. 1, mirrored left to right where `flip`, if valid, is not 0.
Value prepare_images(ir::Builder& build, Value pixels, Value flip) {
  Value image = build.cast(pixels, DType::f32);
  if (flip.valid()) {
    const Value chosen = build.broadcast(build.cast(flip, DType::f32), build.shape(pixels), {0});
    image = build.select(chosen, build.cast(build.reverse(pixels, 2), DType::f32), image);
  }
  return signed_pixels(build, image);
}

/// The labels that the model sees: of some images, none.
Value drop_labels(ir::Builder& build, const DiffusionConfig& diffusion, int64_t classes, Value labels, Value seed,
                  Value index, Value step) {
  if (diffusion.label_dropout == 0) return labels;
  const Value draw = build.random_uniform(seed, index, step, kLabelDropoutStream, {});
  const Value none = build.constant(static_cast<double>(classes - 1), build.type(labels));
  return build.select(build.less(draw, diffusion.label_dropout), none, labels);
}

Loss add_loss(ir::Builder& build, const UNetConfig& unet, const DiffusionConfig& diffusion, int64_t batch,
              const ParameterLayout& layout, bool flip) {
  const ir::Shape sample{unet.image_height, unet.image_width, unet.image_channels};
  const Value pixels = build.input("pixels", {DType::u8, {batch, sample[0], sample[1], sample[2]}});
  const Value index = build.input("index", {DType::i32, {batch}});
  const Value seed = build.state("seed", {DType::u32, {2}});
  const Value step = build.state("step", {DType::i32, {}});
  const Value params = build.state("params", {DType::f32, {layout.size()}});

  const Value x0 = prepare_images(build, pixels, flip ? build.input("flip", {DType::u8, {batch}}) : Value{});
  const Task task = draw_task(build, diffusion, x0, seed, index, step);
  UNetInputs inputs;
  inputs.x = task.input;
  inputs.timesteps = task.time;
  if (unet.num_classes > 0) {
    inputs.labels =
        drop_labels(build, diffusion, unet.num_classes, build.input("label", {DType::i32, {batch}}), seed, index, step);
  }
  if (takes_low_res(unet)) inputs.conditioning = conditioning_of(build, unet, x0);
  if (unet.dropout > 0) inputs.dropout = RandomKey{seed, index, step};
  PackedParameters parameters(build, layout, params);
  const Value output = build_unet(build, parameters, unet, inputs);
  Loss result{{}, params, step, parameters.views(), {}};

  const Value answer = unet.learn_sigma ? build.slice(output, 3, 0, sample[2]) : output;
  const Value error = build.sub(answer, task.target);
  Value each = build.square(error);  // element's part of the loss
  const ir::Shape shape = build.shape(each);
  if (task.weight.valid()) each = build.mul(each, build.broadcast(task.weight, shape, {0}));
  if (unet.learn_sigma) {
    const Value noise_error =
        diffusion.prediction == Prediction::eps
            ? error
            : build.mul(error, per_timestep(build, noise_error_factors(diffusion), task.t, shape));
    const Value variance = build.slice(output, 3, sample[2], 2 * sample[2]);
    const VariationalBound bound = variational_bound(build, diffusion, x0, noise_error, variance, task.t);
    const double share = static_cast<double>(diffusion.timesteps) / 1000;
    each = build.add(each, diffusion.rescale_learned_sigmas ? build.mul(bound.bits, share) : bound.bits);
    result.held = {bound.distance};
  }
  // Image by image, then over the batch: an image's own sum depends on nothing else.
  const Value per_image = build.reduce_sum(each, {1, 2, 3});
  const double count = static_cast<double>(batch) * static_cast<double>(ir::element_count(sample));
  // A table of one number: a constant would be part of the kernels' source, and a new batch would compile them anew.
  const Value share = build.literal({1 / count}, {DType::f32, {}});
  result.loss = build.mul(build.sum_all(per_image), share);
  return result;
}

/// The step so far, this run included.
struct Accumulation {
  Value gradient;
  Value is_last;  ///< f32 [], 1 in the step's last run.
};

Accumulation accumulate_gradient(ir::Builder& build, int64_t runs, Value gradient) {
  ir::Graph& graph = build.graph();
  const Value micro = build.state(kMicro, {DType::i32, {}});
  const Value before = build.state(kAccumulated, build.type(gradient));
  const Value is_last = build.equal(micro, static_cast<double>(runs - 1));
  const Value sum = build.add(before, build.mul(gradient, 1 / static_cast<double>(runs)));
  graph.set_update(kMicro, build.select(is_last, build.zeros_like(micro), build.add(micro, 1.0)));
  graph.set_update(kAccumulated,
                   build.select(build.broadcast_scalar(is_last, build.shape(sum)), build.zeros_like(sum), sum));
  return {sum, is_last};
}

}  // namespace

ir::Graph build_training_step(const UNetConfig& unet, const DiffusionConfig& diffusion, const TrainingConfig& config,
                              bool flip) {
  check_training(unet, diffusion, config.batch);
  check(config.optimizer);
  if (config.accumulate < 1) {
    throw Error(fmt::format("a step of {} batches", config.accumulate), "choose at least 1", ExitCode::wrong_usage);
  }
  const ParameterLayout layout = parameter_layout(unet);
  ir::Graph graph("training_step");
  ir::Builder build(graph);
  const Loss loss = add_loss(build, unet, diffusion, config.batch, layout, flip);
  const std::vector<Value> gradients = passes::differentiate(build, loss.loss, loss.views, loss.held);
  Value gradient = build.pack(gradients, layout.offsets(), layout.size());
  Value is_last;
  if (config.accumulate > 1) {
    const Accumulation accumulation = accumulate_gradient(build, config.accumulate, gradient);
    gradient = accumulation.gradient;
    is_last = accumulation.is_last;
  }
  const OptimizerReport report = add_optimizer(build, config.optimizer, loss.params, gradient, loss.step, is_last);
  const Value next_step = build.add(loss.step, 1.0);
  graph.set_update("step", is_last.valid() ? build.select(is_last, next_step, loss.step) : next_step);
  graph.set_output("loss", loss.loss);
  graph.set_output("grad_norm", report.gradient_norm);
  graph.set_output("nonfinite", report.nonfinite);
  graph.set_output("gradient", gradient);
  graph.set_output("lr", report.learning_rate);
  return graph;
}

bool is_within_step(std::string_view state) { return state == kMicro || state == kAccumulated; }

ir::Graph build_training_loss(const UNetConfig& unet, const DiffusionConfig& diffusion, int64_t batch) {
  check_training(unet, diffusion, batch);
  const ParameterLayout layout = parameter_layout(unet);
  ir::Graph graph("training_loss");
  ir::Builder build(graph);
  graph.set_output("loss", add_loss(build, unet, diffusion, batch, layout, /*flip=*/false).loss);
  return graph;
}

}  // namespace difuse::models
