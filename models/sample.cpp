#include "models/sample.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "ir/error.h"
#include "models/checkpoint.h"
#include "models/run/backend.h"
#include "models/unet.h"
#include "runtime/atomic_file.h"
#include "runtime/compile.h"

namespace difuse::models {

namespace {

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

[[noreturn]] void wrong(const std::string& message, std::string remedy) {
  throw Error(message, std::move(remedy), ExitCode::wrong_usage);
}

/// The sampler's configuration, with messages in the words of the flags.
SamplerConfig sampler_config(const SampleOptions& options, const DiffusionConfig& diffusion) {
  SamplerConfig config;
  config.kind = options.sampler;
  const bool ddim = config.kind == SamplerKind::ddim;
  config.steps =
      options.steps.value_or(ddim ? std::min<int64_t>(config.steps, diffusion.timesteps) : diffusion.timesteps);
  if (config.steps > diffusion.timesteps) {
    wrong(fmt::format("--steps {} is more than the {} timesteps that '{}' was trained with", config.steps,
                      diffusion.timesteps, options.checkpoint.string()),
          fmt::format("give 1 to {}", diffusion.timesteps));
  }
  if (options.eta && !ddim) wrong("--eta has no meaning with --sampler ddpm", "leave it out, or use --sampler ddim");
  config.eta = options.eta.value_or(0);
  config.batch = options.batch.value_or(std::min<int64_t>(options.count, std::max(16, options.threads)));
  return config;
}

std::vector<float> read_weights(const Checkpoint& checkpoint, const std::string& weights,
                                const ParameterLayout& layout) {
  std::vector<std::string> names = {"raw"};
  for (size_t i = 0; i < checkpoint.config().training.optimizer.ema_decays.size(); ++i) names.push_back(ema_state(i));
  if (std::ranges::find(names, weights) == names.end()) {
    wrong(fmt::format("--weights '{}' is not in '{}'", weights, checkpoint.path().string()),
          fmt::format("choose from {}", fmt::join(names, ", ")));
  }
  return checkpoint.parameters(weights == "raw" ? "params" : weights, layout);
}

}  // namespace

std::array<uint32_t, 2> seed_words(uint64_t seed) {
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}

int grid_columns(int64_t count) {
  int64_t columns = 1;
  while (columns * columns < count) ++columns;
  return static_cast<int>(columns);
}

Sampler::Sampler(const UNetConfig& unet, const DiffusionConfig& diffusion, const SamplerConfig& config,
                 const ir::Options& environment, int threads)
    : config_(config),
      height_(static_cast<int>(unet.image_height)),
      width_(static_cast<int>(unet.image_width)),
      channels_(static_cast<int>(unet.image_channels)),
      executor_(runtime::compile(build_sampling_step(unet, diffusion, config), environment, threads)) {}

Sampler::~Sampler() = default;

runtime::Image Sampler::image_of(std::span<const float> pixels) const {
  runtime::Image image{width_, height_, channels_, std::vector<uint8_t>(pixels.size())};
  std::ranges::transform(pixels, image.pixels.begin(), [](float x) {
    const float level = std::nearbyint((x + 1) * 127.5f);
    return static_cast<uint8_t>(level > 0 ? std::min(level, 255.0f) : 0);  // NaN becomes 0.
  });
  return image;
}

std::vector<runtime::Image> Sampler::draw(std::span<const float> parameters, uint64_t seed, int64_t first,
                                          int64_t count, const Continue& go_on) {
  executor_->write_state("params", std::as_bytes(parameters));
  const std::array<uint32_t, 2> words = seed_words(seed);
  executor_->write_state("seed", std::as_bytes(std::span(words)));
  const auto batch = static_cast<size_t>(config_.batch);
  const size_t image_size = static_cast<size_t>(height_) * static_cast<size_t>(width_) * static_cast<size_t>(channels_);
  std::vector<int32_t> index(batch);
  std::vector<float> x(batch * image_size);
  std::vector<runtime::Image> images;
  const int64_t all_steps = (count + config_.batch - 1) / config_.batch * config_.steps;
  int64_t done = 0;
  for (int64_t begin = 0; begin < count; begin += config_.batch) {
    std::iota(index.begin(), index.end(), static_cast<int32_t>(first + begin));
    executor_->write_input("index", std::as_bytes(std::span(index)));
    executor_->write_state("position", bytes_of(int32_t{0}));
    for (int64_t step = 0; step < config_.steps; ++step) {
      executor_->run();
      if (go_on && !go_on(++done, all_steps)) return {};
    }
    executor_->read_state("x", std::as_writable_bytes(std::span(x)));
    for (int64_t i = 0; i < std::min(config_.batch, count - begin); ++i) {
      images.push_back(image_of(std::span<const float>(x).subspan(static_cast<size_t>(i) * image_size, image_size)));
    }
  }
  return images;
}

void sample(const SampleOptions& options, const ir::Options& environment) {
  const Checkpoint checkpoint(find_checkpoint(options.checkpoint, "--checkpoint"));
  const RunConfig& config = checkpoint.config();
  const SamplerConfig sampler = sampler_config(options, config.diffusion);
  if (config.unet.num_classes > 0) {
    wrong(fmt::format("'{}' is class-conditional, which sampling does not support", checkpoint.path().string()),
          "give a checkpoint of a model without classes");
  }
  runtime::require_writable(options.out, 0);
  const ParameterLayout layout = parameter_layout(config.unet);
  const std::vector<float> parameters = read_weights(checkpoint, options.weights, layout);

  fmt::print("{}\n", backend_line(options.threads));
  fmt::print("{} at step {} ({}, {} weights): {} image{}, {} {} steps, seed {}\n", checkpoint.path().string(),
             checkpoint.step(), config.run.model, options.weights, options.count, options.count == 1 ? "" : "s",
             to_string(sampler.kind), sampler.steps, options.seed);
  std::fflush(stdout);
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  Sampler compiled(config.unet, config.diffusion, sampler, environment, options.threads);
  const auto images =
      compiled.draw(parameters, options.seed, options.first_index, options.count, [terminal](int64_t done, int64_t of) {
        if (terminal) fmt::print("\rstep {}/{}{}", done, of, done == of ? "\n" : "");
        if (terminal) std::fflush(stdout);
        return true;
      });
  const int columns = static_cast<int>(options.columns.value_or(grid_columns(options.count)));
  runtime::write_png(options.out, runtime::make_grid(images, columns, options.count > 1 ? 2 : 0));
  fmt::print("{}\n", options.out.string());
}

}  // namespace difuse::models
