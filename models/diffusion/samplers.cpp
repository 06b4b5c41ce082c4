#include "models/diffusion/samplers.h"

#include <algorithm>
#include <tuple>

#include "models/low_res.h"
#include "models/streams.h"
#include "models/unet.h"

namespace difuse::models {
namespace {

using ir::DType;
using ir::Value;

bool adds_noise(const SamplerConfig& config) { return config.kind == SamplerKind::ddpm || config.eta > 0; }
bool keeps_x0(SamplerKind kind) { return kind == SamplerKind::heun || kind == SamplerKind::dpmpp2m; }
bool keeps_x(SamplerKind kind) { return kind == SamplerKind::heun; }
bool is_guided(const SamplerConfig& config) { return config.guidance != 1; }

/// The table's row at a position.
class Row {
 public:
  Row(ir::Builder& build, Value table, Value position)
      : build_(build), row_(build.reshape(build.gather(table, build.reshape(position, {1})), {std::ssize(kColumns)})) {}

  /// f32 []
  Value operator()(double SamplerRow::*column) const {
    const auto at = static_cast<int64_t>(std::ranges::find(kColumns, column) - kColumns.begin());
    return build_.view(row_, at, {});  // A view needs no kernel of its own.
  }
  Value over(double SamplerRow::*column, const ir::Shape& shape) const {
    return build_.broadcast_scalar((*this)(column), shape);
  }
  /// Column times image.
  Value times(double SamplerRow::*column, Value image) const {
    return build_.mul(over(column, build_.shape(image)), image);
  }

 private:
  ir::Builder& build_;
  Value row_;
};

/// The largest of 1 and the percentile of each image's |x|, [N]: the least s that `share` of the pixels do not exceed,
/// found by halving [1, max |x|] so often that f32 cannot tell more.
Value dynamic_limit(ir::Builder& build, Value x, double share) {
  constexpr int kHalvings = 22;
  const ir::Shape shape = build.shape(x);
  const auto pixels = static_cast<double>(ir::element_count(shape) / shape[0]);
  const Value size = build.abs(x);
  Value high = build.max(build.reduce_max(size, {1, 2, 3}), 1.0);
  Value low = build.constant(1, build.type(high));
  for (int i = 0; i < kHalvings; ++i) {
    const Value middle = build.mul(build.add(low, high), 0.5);
    const Value within = build.reduce_sum(build.less_equal(size, build.broadcast(middle, shape, {0})), {1, 2, 3});
    const Value enough = build.less_equal(share * pixels, within);
    high = build.select(enough, middle, high);
    low = build.select(enough, low, middle);
  }
  return high;
}

Value clipped(ir::Builder& build, const SamplerConfig& config, Value x0) {
  if (config.clipping == Clipping::none) return x0;
  if (config.clipping == Clipping::clip) return build.min(build.max(x0, -1.0), 1.0);
  const Value limit = build.broadcast(dynamic_limit(build, x0, config.percentile), build.shape(x0), {0});
  return build.div(build.min(build.max(x0, build.neg(limit)), limit), limit);
}

/// The network's answer at x.
Value ask(ir::Builder& build, const Denoiser& denoiser, const SamplerConfig& config, const Row& row, Value x) {
  const int64_t batch = config.batch;
  const auto times = [&](int64_t count) { return row.over(&SamplerRow::time, {count}); };
  const Value input = row.times(&SamplerRow::in, x);
  Value labels;
  if (denoiser.num_classes > 0) labels = build.input("label", {DType::i32, {batch}});
  if (!is_guided(config)) return denoiser.network(build, input, times(batch), labels);

  const Value none = build.constant(static_cast<double>(denoiser.num_classes - 1), build.type(labels));
  const Value both =
      denoiser.network(build, build.concat({input, input}, 0), times(2 * batch), build.concat({labels, none}, 0));
  const Value with = build.slice(both, 0, 0, batch), without = build.slice(both, 0, batch, 2 * batch);
  const int64_t channels = denoiser.image[2];
  const auto image = [&](Value v) { return denoiser.learn_sigma ? build.slice(v, 3, 0, channels) : v; };
  const Value guided =
      build.add(image(without), row.times(&SamplerRow::guidance, build.sub(image(with), image(without))));
  if (!denoiser.learn_sigma) return guided;
  return build.concat({guided, build.slice(with, 3, channels, 2 * channels)}, 3);
}

/// What a stochastic step adds. The second half of a learned variance's output, in [-1, 1], goes from the least to the
/// most log variance.
Value step_noise(ir::Builder& build, const Denoiser& denoiser, const SamplerConfig& config, const Row& row,
                 Value output, Value z) {
  if (!denoiser.learn_sigma || config.kind != SamplerKind::ddpm) return row.times(&SamplerRow::noise, z);
  const ir::Shape shape = build.shape(z);
  const Value share = build.mul(build.add(build.slice(output, 3, denoiser.image[2], 2 * denoiser.image[2]), 1.0), 0.5);
  const Value log_variance = build.add(row.times(&SamplerRow::most_log_variance, share),
                                       row.times(&SamplerRow::least_log_variance, build.sub(1.0, share)));
  const Value adds = build.broadcast_scalar(build.less(0.0, row(&SamplerRow::noise)), shape);
  return build.mul(adds, build.mul(build.exp(build.mul(log_variance, 0.5)), z));
}

}  // namespace

ir::Graph build_sampling_step(const Denoiser& denoiser, const DiffusionConfig& diffusion, const SamplerConfig& config) {
  check_model(diffusion, denoiser.num_classes, denoiser.learn_sigma);
  check(config, diffusion);
  const ir::Shape shape{config.batch, denoiser.image[0], denoiser.image[1], denoiser.image[2]};
  const int64_t rows = table_rows(config.kind, diffusion), columns = kColumns.size();

  ir::Graph graph("sampling_step");
  ir::Builder build(graph);
  const Value index = build.input("index", {DType::i32, {config.batch}});
  const Value seed = build.state("seed", {DType::u32, {2}});
  const Value table = build.state("table", {DType::f32, {rows, columns}});
  const Value state_x = build.state("x", {DType::f32, shape});
  const Value position = build.state("position", {DType::i32, {}});
  const Row row(build, table, position);

  const Value first = build.constant(0, {DType::i32, {}});
  const Value start = build.random_normal(seed, index, first, kInitialNoiseStream, denoiser.image);
  const Value is_start = build.broadcast_scalar(build.equal(position, 0.0), shape);
  const auto drawn = [&](int64_t stream) { return build.random_normal(seed, index, position, stream, denoiser.image); };
  Value x = build.select(is_start, row.times(&SamplerRow::start, start), state_x);
  if (config.churn > 0) x = build.add(x, row.times(&SamplerRow::churn, drawn(kChurnStream)));

  const Value output = ask(build, denoiser, config, row, x);
  const Value answer = denoiser.learn_sigma ? build.slice(output, 3, 0, denoiser.image[2]) : output;
  const Value x0 =
      clipped(build, config, build.add(row.times(&SamplerRow::skip, x), row.times(&SamplerRow::out, answer)));
  Value next = build.add(row.times(&SamplerRow::of_x, x), row.times(&SamplerRow::of_x0, x0));
  const auto remember = [&](const char* name, double SamplerRow::*column, Value now) {
    // Zero before the first row, whatever the trajectory before has left.
    const Value kept = build.state(name, {DType::f32, shape});
    next = build.add(next, row.times(column, build.select(is_start, build.zeros_like(kept), kept)));
    graph.set_update(name, now);
  };
  if (keeps_x(config.kind)) remember("x_before", &SamplerRow::of_x_before, x);
  if (keeps_x0(config.kind)) remember("x0_before", &SamplerRow::of_x0_before, x0);
  if (adds_noise(config)) {
    next = build.add(next, step_noise(build, denoiser, config, row, output, drawn(kSamplingNoiseStream)));
  }
  graph.set_update("x", next);
  graph.set_update("position", build.add(position, 1.0));
  return graph;
}

ir::Graph build_sampling_step(const UNetConfig& unet, const DiffusionConfig& diffusion, const SamplerConfig& config) {
  check(unet);
  const ParameterLayout layout = parameter_layout(unet);
  Denoiser denoiser{{unet.image_height, unet.image_width, unet.image_channels}, unet.num_classes, unet.learn_sigma, {}};
  denoiser.network = [&](ir::Builder& build, Value x, Value time, Value labels) {
    UNetInputs inputs;
    inputs.x = x;
    inputs.timesteps = time;
    inputs.labels = labels;
    if (takes_low_res(unet)) {
      const Value low_res = conditioning_input(build, unet, config.batch);
      const bool twice = build.shape(x)[0] != config.batch;  // Guidance: with labels and without.
      inputs.conditioning = twice ? build.concat({low_res, low_res}, 0) : low_res;
    }
    PackedParameters parameters(build, layout, build.state("params", {DType::f32, {layout.size()}}));
    return build_unet(build, parameters, unet, inputs);
  };
  return build_sampling_step(denoiser, diffusion, config);
}

bool same_graph(const SamplerConfig& a, const SamplerConfig& b) {
  const auto key = [](const SamplerConfig& c) {
    return std::tuple(c.kind, c.batch, c.clipping, c.percentile, c.eta > 0, c.churn > 0, is_guided(c));
  };
  return key(a) == key(b);
}

}  // namespace difuse::models
