#include "models/visualize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <utility>

#include "ir/error.h"
#include "models/pixels.h"
#include "models/run/console.h"
#include "models/run/data.h"
#include "models/run/interrupt.h"
#include "models/run/output_folder.h"
#include "models/sampler.h"
#include "models/streams.h"
#include "models/unet.h"
#include "runtime/executor.h"
#include "runtime/png.h"
#include "runtime/webp_animation.h"

namespace difuse::models {
namespace {

namespace fs = std::filesystem;
using ir::DType;
using ir::Value;

constexpr int kPadding = 2, kFrameMs = 80, kLastMs = 2000;
constexpr size_t kMoments = 10, kMostFrames = 64;
constexpr int64_t kMostAtATime = 64;

/// `count` of `from` entries, evenly spaced, the first and the last among them.
std::vector<size_t> evenly(size_t from, size_t count) {
  std::vector<size_t> chosen;
  count = std::min(count, from);
  for (size_t i = 0; i < count; ++i) chosen.push_back(count == 1 ? from - 1 : i * (from - 1) / (count - 1));
  return chosen;
}

/// Moments of several images: frames[moment][image].
using Frames = std::vector<std::vector<runtime::Image>>;

/// A row per image, its moments from left to right.
void write_rows(const fs::path& path, const Frames& frames) {
  const std::vector<size_t> chosen = evenly(frames.size(), kMoments);
  std::vector<runtime::Image> tiles;
  for (size_t image = 0; image < frames.front().size(); ++image) {
    for (const size_t moment : chosen) tiles.push_back(frames[moment][image]);
  }
  runtime::write_png(path, runtime::make_grid(tiles, static_cast<int>(chosen.size()), kPadding));
  say("{}\n", path.string());
}

void write_film(const fs::path& path, const Frames& frames) {
  std::vector<runtime::Image> film;
  for (const size_t moment : evenly(frames.size(), kMostFrames)) {
    const auto count = static_cast<int64_t>(frames[moment].size());
    film.push_back(runtime::make_grid(frames[moment], grid_columns(count), kPadding));
  }
  runtime::write_webp_animation(path, film, kFrameMs, kLastMs);
  say("{}\n", path.string());
}

/// (x_0 + sigma z) / sqrt(1 + sigma^2) as a graph whose sigma is a state.
ir::Graph build_corruption(const UNetConfig& unet, int64_t batch) {
  const ir::Shape image{unet.image_height, unet.image_width, unet.image_channels};
  const ir::Shape shape{batch, image[0], image[1], image[2]};
  ir::Graph graph("corruption");
  ir::Builder build(graph);
  const Value x0 = signed_pixels(build, build.cast(build.input("pixels", {DType::u8, shape}), DType::f32));
  const Value sigma = build.state("sigma", {DType::f32, {}});
  const Value z =
      build.random_normal(build.state("seed", {DType::u32, {2}}), build.input("index", {DType::i32, {batch}}),
                          build.constant(0, {DType::i32, {}}), kNoiseStream, image);
  const Value scale = build.rsqrt(build.add(build.square(sigma), 1.0));
  const Value noisy = build.add(x0, build.mul(build.broadcast_scalar(sigma, shape), z));
  graph.set_output("x", build.mul(noisy, build.broadcast_scalar(scale, shape)));
  return graph;
}

class Visualizer {
 public:
  Visualizer(const VisualizeOptions& options, const ir::Options& environment, const TrainedModel& checkpoint,
             const InterruptGuard& interrupt)
      : options_(options),
        environment_(environment),
        interrupt_(interrupt),
        checkpoint_(checkpoint),
        config_(checkpoint.config()),
        reverse_(sized(settle_sampler(options.sampler, checkpoint))),
        weights_(options.weights.value_or(checkpoint.default_weights())),
        classes_(settle_classes(options.classes, checkpoint)),
        folder_(options.out),
        low_res_(takes_images() ? settle_low_res(options.low_res, checkpoint, options.threads, environment)
                                : std::vector<uint8_t>()),
        request_{{}, options.seed, options.images, classes_, low_res_},
        parameters_(read_weights(checkpoint, weights_, parameter_layout(config_.unet))),
        backend_(open_backend(options.device, options.precision, options.threads, environment)) {
    request_.parameters = parameters_;
  }

  void run() {
    using Part = VisualizeOptions::Part;
    say_turns(config_.unet, low_res_, options_.images);
    say("{}\n", backend_line(backend_));
    say("{} at step {} ({}, {} weights), seed {}\n", checkpoint_.path().string(), checkpoint_.step(), config_.run.model,
        weights_, options_.seed);
    std::fflush(stdout);
    const auto wanted = [&](Part part) { return !options_.only || *options_.only == part; };
    if (wanted(Part::forward) && !options_.data.empty()) forward();
    if (wanted(Part::forward) && options_.data.empty()) say("forward process: left out, it needs --data\n");
    if (wanted(Part::reverse)) reverse();
    if (wanted(Part::samplers)) samplers();
    folder_.keep();
  }

 private:
  int64_t batch() const { return std::ssize(options_.images); }

  /// The forward process is one of data alone.
  bool takes_images() const { return options_.low_res || options_.only != VisualizeOptions::Part::forward; }

  SamplerConfig sized(SamplerConfig config) const {
    config.batch = std::min(batch(), kMostAtATime);
    return config;
  }

  /// The first images of the data, brought to the size of the model.
  std::vector<uint8_t> data_images() const {
    TrainOptions train;
    train.data = options_.data;
    train.threads = options_.threads;
    if (!options_.data_cache.empty()) train.data_cache = options_.data_cache;
    RunConfig config = config_;
    config.run.class_from_folder = false;
    const runtime::ImageSet set = load_data(train, config, /*resumed=*/true, environment_, interrupt_);
    if (set.count < batch()) {
      throw Error(
          fmt::format("--data '{}' has {} images, and {} are to be shown", options_.data.string(), set.count, batch()),
          "give fewer --seeds, or more images", ExitCode::wrong_usage);
    }
    const auto shown = set.pixels.first(static_cast<size_t>(batch() * set.image_bytes()));
    return {shown.begin(), shown.end()};
  }

  void forward() const {
    const std::vector<uint8_t> pixels = data_images();
    SamplerConfig levels = default_sampler(config_.diffusion, SamplerKind::ddpm);
    levels.steps = std::min<int64_t>(kMostFrames - 1, config_.diffusion.timesteps);
    std::vector<double> sigmas = visited_sigmas(levels, config_.diffusion);
    sigmas.push_back(0);
    std::ranges::reverse(sigmas);
    // In f32: what is shown is data, not a model's work.
    const Backend exact(backend_.target, passes::Precision::f32);
    const auto executor = compile(build_corruption(config_.unet, batch()), environment_, exact);
    const auto seed = seed_words(options_.seed);
    executor->write_state("seed", std::as_bytes(std::span(seed)));
    executor->write_input("pixels", std::as_bytes(std::span(pixels)));
    executor->write_input("index", std::as_bytes(std::span(options_.images)));
    Frames frames;
    std::vector<float> x(pixels.size());
    for (const double sigma : sigmas) {
      interrupt_.check();
      const auto level = static_cast<float>(sigma);
      executor->write_state("sigma", std::as_bytes(std::span(&level, 1)));
      executor->run();
      executor->read_output("x", std::as_writable_bytes(std::span(x)));
      frames.push_back(images_of(x, 1));
    }
    write(frames, "forward");
  }

  std::vector<float> draw(Sampler& sampler, const Sampler::Watch& watch = {}) const {
    const auto go_on = [this](int64_t, int64_t) {
      interrupt_.check();
      return true;
    };
    std::vector<float> pixels = sampler.draw_exact(request_, go_on, watch);
    require_finite(request_.images, pixels);
    return pixels;
  }

  void reverse() const {
    Sampler sampler(config_.unet, config_.diffusion, reverse_, environment_, backend_);
    std::map<size_t, std::vector<std::vector<runtime::Image>>> by_batch;
    draw(sampler, [&](size_t first, const SamplerRow& row, std::span<const float> x) {
      // The first of a step's two evaluations only tries where the step leads.
      const bool tries = reverse_.kind == SamplerKind::heun && row.next_sigma != 0 && row.next_sigma != row.sigma;
      if (!tries) by_batch[first].push_back(images_of(x, 1 / std::sqrt(1 + row.next_sigma * row.next_sigma)));
    });
    Frames frames(by_batch.begin()->second.size());
    for (const auto& [first, moments] : by_batch) {
      for (size_t i = 0; i < moments.size(); ++i) {
        frames[i].insert(frames[i].end(), moments[i].begin(), moments[i].end());
      }
    }
    write(frames, "reverse");
  }

  void samplers() const {
    std::vector<runtime::Image> tiles;
    int row = 0;
    for (const SamplerKind kind : {SamplerKind::ddpm, SamplerKind::ddim, SamplerKind::heun, SamplerKind::dpmpp2m}) {
      SamplerConfig config = sized(default_sampler(config_.diffusion, kind));
      Sampler sampler(config_.unet, config_.diffusion, config, environment_, backend_);
      int64_t before = 0;
      for (const int64_t most : {5, 10, 20, 50}) {
        const int64_t steps = std::min(most, config_.diffusion.timesteps);
        if (steps == std::exchange(before, steps)) continue;
        config.steps = steps;
        sampler.use(config);
        say("samplers.png, row {}: {}, {} steps, {} evaluations of the network\n", ++row, to_string(kind), steps,
            evaluations(kind, steps));
        std::fflush(stdout);
        for (runtime::Image& image : to_images(config_.unet, draw(sampler))) tiles.push_back(std::move(image));
      }
    }
    const fs::path path = options_.out / "samplers.png";
    runtime::write_png(path, runtime::make_grid(tiles, static_cast<int>(batch()), kPadding));
    say("{}\n", path.string());
  }

  std::vector<runtime::Image> images_of(std::span<const float> x, double scale) const {
    std::vector<float> shown(x.begin(), x.end());
    for (float& value : shown) value *= static_cast<float>(scale);
    return to_images(config_.unet, shown);
  }

  void write(const Frames& frames, const std::string& name) const {
    write_rows(options_.out / (name + ".png"), frames);
    write_film(options_.out / (name + ".webp"), frames);
    std::fflush(stdout);
  }

  const VisualizeOptions& options_;
  const ir::Options& environment_;
  const InterruptGuard& interrupt_;
  const TrainedModel& checkpoint_;
  const RunConfig& config_;
  const SamplerConfig reverse_;
  const std::string weights_;
  const std::vector<int32_t> classes_;
  OutputFolder folder_;
  const std::vector<uint8_t> low_res_;
  DrawRequest request_;
  const std::vector<float> parameters_;
  const Backend backend_;
};

}  // namespace

void visualize(const VisualizeOptions& options, const ir::Options& environment) {
  if (options.only == VisualizeOptions::Part::forward && options.data.empty()) {
    throw Error("the forward process is one of data, and there is no --data", "give --data, or leave --only out",
                ExitCode::wrong_usage);
  }
  const TrainedModel checkpoint = TrainedModel::open(options.checkpoint, "--checkpoint", options.foreign);
  require_pictures(checkpoint);
  for (const std::string& note : checkpoint.notes()) say("{}\n", note);
  const InterruptGuard interrupt;
  Visualizer(options, environment, checkpoint, interrupt).run();
}

}  // namespace difuse::models
