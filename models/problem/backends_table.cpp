#include "models/problem/backends_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "ir/error.h"
#include "ir/reference.h"
#include "models/low_res.h"
#include "models/run/console.h"
#include "models/run/units.h"
#include "models/sample.h"
#include "models/sampler.h"
#include "models/unet.h"
#include "runtime/executor.h"

namespace difuse::models {
namespace {

using Clock = std::chrono::steady_clock;
using ir::DType;

/// What draws, and how long it takes.
struct Line {
  std::string name;
  double seconds = 0;
  std::vector<double> pixels;
};

struct Job {
  const RunConfig& config;
  SamplerConfig sampler;
  DrawRequest request;
};

ir::Tensor tensor(DType dtype, ir::Shape shape, const auto& values) {
  return {{dtype, std::move(shape)}, {values.begin(), values.end()}};
}

Line by_reference(const Job& job) {
  const auto& [config, sampler, request] = job;
  const ir::Graph graph = build_sampling_step(config.unet, config.diffusion, sampler);
  const std::vector<SamplerRow> rows = sampler_rows(sampler, config.diffusion);
  ir::TensorMap inputs{{"index", tensor(DType::i32, {sampler.batch}, request.images)}};
  if (!request.classes.empty()) {
    std::vector<int32_t> labels;
    for (const int32_t i : request.images)
      labels.push_back(request.classes[static_cast<size_t>(i) % request.classes.size()]);
    inputs["label"] = tensor(DType::i32, {sampler.batch}, labels);
  }
  if (!request.low_res.empty()) {
    const ir::Shape small = low_res_shape(config.unet);
    inputs["low_res"] = tensor(DType::u8, {sampler.batch, small[0], small[1], small[2]}, request.low_res);
  }
  ir::TensorMap states;
  for (const int id : graph.leaves(ir::Op::state)) {
    const ir::Node& node = graph.node(id);
    states[node.as<ir::LeafAttrs>().name] = ir::Tensor(node.types[0]);
  }
  states.at("params").data.assign(request.parameters.begin(), request.parameters.end());
  std::ranges::copy(seed_words(request.seed), states.at("seed").data.begin());
  std::ranges::copy(sampler_table(rows, sampler.kind, config.diffusion), states.at("table").data.begin());
  const auto begin = Clock::now();
  for (size_t i = 0; i < rows.size(); ++i) states = ir::run_reference(graph, inputs, states).states;
  return {"CPU, reference, fp64", seconds_since(begin), states.at("x").data};
}

struct Implementation {
  std::string name;
  Backend backend;
  ir::Options environment;
};

Line by_kernels(const Job& job, const Implementation& one) {
  constexpr int kRuns = 3;
  Sampler sampler(job.config.unet, job.config.diffusion, job.sampler, one.environment, one.backend);
  const std::vector<float> pixels = sampler.draw_exact(job.request);
  std::vector<double> seconds;
  for (int i = 0; i < kRuns; ++i) {
    const auto begin = Clock::now();
    static_cast<void>(sampler.draw_exact(job.request));
    seconds.push_back(seconds_since(begin));
  }
  return {one.name, runtime::median(seconds), {pixels.begin(), pixels.end()}};
}

/// All but the reference, slowest first.
std::vector<Implementation> implementations(const BackendsJob& job, const ir::Options& environment) {
  std::vector<Implementation> all;
  ir::Options estimated = environment;
  estimated.tune = ir::Tuning::off;
  const auto add_one = [&](const char* device, const char* how, const Backend& backend, const ir::Options& options) {
    all.push_back({fmt::format("{}, {}, {}", device, how, passes::to_string(backend.precision)), backend, options});
  };
  const auto add = [&](const char* device, Backend backend) {
    for (const bool fuse : {false, true}) {
      backend.fuse = fuse;
      add_one(device, fuse ? "fused" : "unfused", backend, estimated);
    }
    if (backend.target.is_cuda() && environment.tune != ir::Tuning::off) {
      add_one(device, "fused, tuned", backend, environment);
    }
  };
  add("CPU", Backend(job.threads));
  Backend chosen = open_backend(job.device, job.precision, job.threads, environment);
  if (!chosen.target.is_cuda()) return all;
  if (chosen.precision != passes::Precision::f32) add("CUDA", Backend(chosen.target, passes::Precision::f32));
  add("CUDA", std::move(chosen));
  return all;
}

/// What stands in for an image to enlarge: how fast one is does not hang on what it shows.
std::vector<uint8_t> example_low_res(const UNetConfig& unet, int64_t images) {
  if (!takes_low_res(unet)) return {};
  std::vector<uint8_t> pixels(static_cast<size_t>(images * ir::element_count(low_res_shape(unet))));
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i * 37 % 256);
  return pixels;
}

/// Infinity where one of two is not a number.
double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    largest = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(largest, difference);
  }
  return largest;
}

/// Says each line as soon as it is known: the first takes longest.
class Table {
 public:
  Table(bool as_json, int64_t images) : json_(as_json), images_(static_cast<double>(images)) {
    if (!json_) say("{:<24} {:>12} {:>12} {:>12} {:>20}\n", "", "seconds", "images/s", "speed", "largest difference");
  }

  void add(const Line& line) {
    if (!first_) first_ = line;
    const double difference = largest_difference(line.pixels, first_->pixels);
    if (json_) {
      out_.push_back({{"name", line.name}, {"seconds", line.seconds}, {"largest_difference", difference}});
      return;
    }
    say("{:<24} {:>12.4f} {:>12.2f} {:>11.1f}x {:>20.2e}\n", line.name, line.seconds, images_ / line.seconds,
        first_->seconds / line.seconds, difference);
    std::fflush(stdout);
  }

  void finish() const {
    if (json_) say("{}\n", out_.dump(2));
  }

 private:
  const bool json_;
  const double images_;
  std::optional<Line> first_;
  nlohmann::ordered_json out_ = nlohmann::ordered_json::array();
};

}  // namespace

void compare_backends(const BackendsJob& job, const ir::Options& environment) {
  const TrainedModel checkpoint = TrainedModel::open(job.checkpoint, "--checkpoint", {});
  const RunConfig& config = checkpoint.config();
  SamplerChoice choice;
  choice.steps = job.steps.value_or(std::min<int64_t>(4, config.diffusion.timesteps));
  choice.batch = job.images.value_or(16);
  const SamplerConfig sampler = settle_sampler(choice, checkpoint);
  const std::vector<float> parameters =
      read_weights(checkpoint, checkpoint.default_weights(), parameter_layout(config.unet));
  const std::vector<uint8_t> low_res = example_low_res(config.unet, sampler.batch);
  const std::vector<Implementation> all = implementations(job, environment);
  if (!job.json) {
    for (const Implementation& one : all) {
      if (!one.backend.fuse) say("{}\n", backend_line(one.backend));
    }
    say("{} at step {} ({}): {} images as one batch, {} {} steps\n\n", checkpoint.path().string(), checkpoint.step(),
        config.run.model, sampler.batch, to_string(sampler.kind), sampler.steps);
    std::fflush(stdout);
  }
  const Job drawn{
      config,
      sampler,
      {parameters, 0, image_numbers(0, sampler.batch), every_class(config.unet, config.diffusion), low_res}};
  Table table(job.json, sampler.batch);
  table.add(by_reference(drawn));
  for (const Implementation& one : all) table.add(by_kernels(drawn, one));
  table.finish();
}

}  // namespace difuse::models
