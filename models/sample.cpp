#include "models/sample.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <numeric>

#include "ir/error.h"
#include "models/checkpoint.h"
#include "models/config/nearest.h"
#include "models/run/console.h"
#include "models/unet.h"
#include "runtime/atomic_file.h"
#include "runtime/executor.h"

namespace difuse::models {

namespace {

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

[[noreturn]] void wrong(const std::string& message, std::string remedy) {
  throw Error(message, std::move(remedy), ExitCode::wrong_usage);
}

int grid_padding(int64_t count) { return count > 1 ? 2 : 0; }

/// A slip such as `--out photo.jpg` or `--out notes.txt` must not cost a file.
void require_png_target(const std::filesystem::path& out) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(out, error);
  if (std::filesystem::is_directory(status)) return;  // Said by the check of whether it can be written.
  if (out.extension() != ".png" && out.extension() != ".PNG") {
    wrong(fmt::format("--out '{}' is not the name of a PNG", out.string()), "give a name that ends in .png");
  }
  if (!std::filesystem::exists(status)) return;
  constexpr std::string_view kSignature = "\x89PNG\r\n\x1a\n";
  std::string begin(kSignature.size(), '\0');
  if (std::filesystem::is_regular_file(status)) {
    std::ifstream(out, std::ios::binary).read(begin.data(), static_cast<std::streamsize>(begin.size()));
  }
  if (begin != kSignature) {
    wrong(fmt::format("--out '{}' exists and is not a PNG, so it is not replaced", out.string()),
          "choose another name, or move that file away");
  }
}

/// What libpng writes at most on a side.
void require_grid_size(const SampleOptions& options, const UNetConfig& unet, int64_t columns) {
  constexpr int64_t kMostPixels = 1000000;
  const int64_t padding = grid_padding(options.count), rows = (options.count + columns - 1) / columns;
  const int64_t width = padding + std::min(columns, options.count) * (unet.image_width + padding);
  const int64_t height = padding + rows * (unet.image_height + padding);
  if (width <= kMostPixels && height <= kMostPixels) return;
  wrong(fmt::format("the grid of {} images in {} columns is {} x {} pixels, and a PNG has at most {} on a side",
                    options.count, columns, width, height, kMostPixels),
        "give a smaller --n, or other --columns");
}

/// The sampler's configuration, with messages in the words of the flags.
SamplerConfig sampler_config(const SampleOptions& options, const DiffusionConfig& diffusion, bool on_gpu) {
  SamplerConfig config;
  config.kind = options.sampler;
  const bool ddim = config.kind == SamplerKind::ddim;
  config.steps = options.steps.value_or(std::min<int64_t>(config.steps, diffusion.timesteps));
  if (config.steps > diffusion.timesteps) {
    wrong(fmt::format("--steps {} is more than the {} timesteps that '{}' was trained with", config.steps,
                      diffusion.timesteps, options.checkpoint.string()),
          fmt::format("give 1 to {}", diffusion.timesteps));
  }
  if (options.eta && !ddim) wrong("--eta has no meaning with --sampler ddpm", "leave it out, or use --sampler ddim");
  config.eta = options.eta.value_or(0);
  constexpr int64_t kGpuBatch = 64;
  const int64_t most = on_gpu ? kGpuBatch : std::max(16, options.threads);
  config.batch = options.batch.value_or(std::min<int64_t>(options.count, most));
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

/// The number of a class: a name, as the checkpoint has it, or digits where no class has such a name.
int32_t find_class(const std::string& text, const Checkpoint& checkpoint) {
  const std::vector<std::string>& names = checkpoint.config().run.class_names;
  const int64_t classes = checkpoint.config().unet.num_classes;
  if (const auto found = std::ranges::find(names, text); found != names.end()) {
    return static_cast<int32_t>(found - names.begin());
  }
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (whole && number >= 0 && number < classes) return static_cast<int32_t>(number);
  std::string remedy = fmt::format("give a number from 0 to {}", classes - 1);
  constexpr size_t kMostNames = 30;
  if (names.size() > kMostNames) {
    const std::string near = nearest(text, names);
    remedy += fmt::format(", or a name; {}difuse inspect lists them",
                          near.empty() ? std::string() : fmt::format("did you mean '{}'? ", near));
  } else if (!names.empty()) {
    remedy += fmt::format(", or a name: {}", choose_from(text, names));
  }
  wrong(fmt::format("--class '{}' is no class of '{}'", text, checkpoint.path().string()), remedy);
}

/// The classes that the images take in turn.
std::vector<int32_t> settle_classes(const std::optional<std::string>& given, const Checkpoint& checkpoint) {
  const UNetConfig& unet = checkpoint.config().unet;
  if (!given) return every_class(unet);
  if (unet.num_classes == 0) {
    wrong(fmt::format("--class {}, but the model of '{}' has no classes", *given, checkpoint.path().string()),
          "leave --class out, or give a checkpoint that was trained with classes");
  }
  const std::vector<std::string>& names = checkpoint.config().run.class_names;
  if (std::ranges::find(names, *given) != names.end()) return {find_class(*given, checkpoint)};  // It may have commas.
  std::vector<int32_t> classes;
  for (size_t begin = 0; begin <= given->size();) {
    const size_t end = std::min(given->find(',', begin), given->size());
    classes.push_back(find_class(given->substr(begin, end - begin), checkpoint));
    begin = end + 1;
  }
  return classes;
}

std::string class_line(const std::vector<int32_t>& classes, const std::vector<std::string>& names) {
  constexpr size_t kMostShown = 30;
  std::vector<std::string> shown;
  for (size_t i = 0; i < std::min(kMostShown, classes.size()); ++i) {
    const auto number = static_cast<size_t>(classes[i]);
    shown.push_back(number < names.size() ? names[number] : fmt::format("{}", number));
  }
  return fmt::format("classes, in turn: {}{}", fmt::join(shown, ", "), classes.size() > kMostShown ? ", ..." : "");
}

}  // namespace

std::array<uint32_t, 2> seed_words(uint64_t seed) {
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}

std::vector<int32_t> every_class(const UNetConfig& unet) {
  std::vector<int32_t> classes(static_cast<size_t>(unet.num_classes));
  std::iota(classes.begin(), classes.end(), 0);
  return classes;
}

int grid_columns(int64_t count) {
  int64_t columns = 1;
  while (columns * columns < count) ++columns;
  return static_cast<int>(columns);
}

Sampler::Sampler(const UNetConfig& unet, const DiffusionConfig& diffusion, const SamplerConfig& config,
                 const ir::Options& environment, const Backend& backend)
    : config_(config),
      height_(static_cast<int>(unet.image_height)),
      width_(static_cast<int>(unet.image_width)),
      channels_(static_cast<int>(unet.image_channels)),
      executor_(compile(build_sampling_step(unet, diffusion, config), environment, backend)) {}

Sampler::~Sampler() = default;

runtime::Image Sampler::image_of(std::span<const float> pixels) const {
  runtime::Image image{width_, height_, channels_, std::vector<uint8_t>(pixels.size())};
  std::ranges::transform(pixels, image.pixels.begin(), [](float x) {
    const float level = std::nearbyint((x + 1) * 127.5f);
    return static_cast<uint8_t>(level > 0 ? std::min(level, 255.0f) : 0);  // NaN becomes 0.
  });
  return image;
}

std::vector<runtime::Image> Sampler::draw(const DrawRequest& request, const Continue& go_on) {
  executor_->write_state("params", std::as_bytes(request.parameters));
  const std::array<uint32_t, 2> words = seed_words(request.seed);
  executor_->write_state("seed", std::as_bytes(std::span(words)));
  const auto batch = static_cast<size_t>(config_.batch);
  const size_t image_size = static_cast<size_t>(height_) * static_cast<size_t>(width_) * static_cast<size_t>(channels_);
  std::vector<int32_t> index(batch), labels(batch);
  std::vector<float> x(batch * image_size);
  std::vector<runtime::Image> images;
  const int64_t count = request.count;
  const int64_t all_steps = (count + config_.batch - 1) / config_.batch * config_.steps;
  int64_t done = 0;
  for (int64_t begin = 0; begin < count; begin += config_.batch) {
    std::iota(index.begin(), index.end(), static_cast<int32_t>(request.first + begin));
    executor_->write_input("index", std::as_bytes(std::span(index)));
    if (!request.classes.empty()) {
      std::ranges::transform(index, labels.begin(), [&](int32_t i) {
        return request.classes[static_cast<size_t>(i) % request.classes.size()];
      });
      executor_->write_input("label", std::as_bytes(std::span(labels)));
    }
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
  require_png_target(options.out);
  const Checkpoint checkpoint(find_checkpoint(options.checkpoint, "--checkpoint"));
  const RunConfig& config = checkpoint.config();
  const Backend backend = open_backend(options.device, options.precision, options.threads, environment);
  const SamplerConfig sampler = sampler_config(options, config.diffusion, backend.target.is_cuda());
  const std::vector<int32_t> classes = settle_classes(options.classes, checkpoint);
  const int64_t columns = options.columns.value_or(grid_columns(options.count));
  require_grid_size(options, config.unet, columns);
  runtime::require_writable(options.out, 0);
  const ParameterLayout layout = parameter_layout(config.unet);
  const std::vector<float> parameters = read_weights(checkpoint, options.weights, layout);

  say("{}\n", backend_line(backend));
  say("{} at step {} ({}, {} weights): {} image{}, {} {} steps, seed {}\n", checkpoint.path().string(),
      checkpoint.step(), config.run.model, options.weights, options.count, options.count == 1 ? "" : "s",
      to_string(sampler.kind), sampler.steps, options.seed);
  if (!classes.empty()) say("{}\n", class_line(classes, config.run.class_names));
  std::fflush(stdout);
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  Sampler compiled(config.unet, config.diffusion, sampler, environment, backend);
  const DrawRequest request{parameters, options.seed, options.first_index, options.count, classes};
  const auto images = compiled.draw(request, [terminal](int64_t done, int64_t of) {
    if (terminal) say("\rstep {}/{}{}", done, of, done == of ? "\n" : "");
    if (terminal) std::fflush(stdout);
    return true;
  });
  runtime::write_png(options.out, runtime::make_grid(images, static_cast<int>(columns), grid_padding(options.count)));
  say("{}\n", options.out.string());
}

}  // namespace difuse::models
