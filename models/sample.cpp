#include "models/sample.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <tuple>

#include "ir/error.h"
#include "models/checkpoint.h"
#include "models/config/nearest.h"
#include "models/low_res.h"
#include "models/run/console.h"
#include "models/run/count_progress.h"
#include "models/run/data.h"
#include "models/run/schedule_text.h"
#include "models/sampler.h"
#include "models/unet.h"
#include "runtime/atomic_file.h"
#include "runtime/png.h"

namespace difuse::models {

namespace {

int grid_padding(int64_t count) { return count > 1 ? 2 : 0; }

/// A slip such as `--out photo.jpg` or `--out notes.txt` must not cost a file.
void require_png_target(const std::filesystem::path& out) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(out, error);
  if (std::filesystem::is_directory(status)) return;  // Said by the check of whether it can be written.
  if (out.extension() != ".png" && out.extension() != ".PNG") {
    wrong_usage(fmt::format("--out '{}' is not the name of a PNG", out.string()), "give a name that ends in .png");
  }
  if (!std::filesystem::exists(status)) return;
  constexpr std::string_view kSignature = "\x89PNG\r\n\x1a\n";
  std::string begin(kSignature.size(), '\0');
  if (std::filesystem::is_regular_file(status)) {
    std::ifstream(out, std::ios::binary).read(begin.data(), static_cast<std::streamsize>(begin.size()));
  }
  if (begin != kSignature) {
    wrong_usage(fmt::format("--out '{}' exists and is not a PNG, so it is not replaced", out.string()),
                "choose another name, or move that file away");
  }
}

/// What libpng writes at most on a side.
void require_grid_size(int64_t count, const UNetConfig& unet, int64_t columns) {
  constexpr int64_t kMostPixels = 1000000;
  const int64_t padding = grid_padding(count), rows = (count + columns - 1) / columns;
  const int64_t width = padding + std::min(columns, count) * (unet.image_width + padding);
  const int64_t height = padding + rows * (unet.image_height + padding);
  if (width <= kMostPixels && height <= kMostPixels) return;
  wrong_usage(fmt::format("the grid of {} images in {} columns is {} x {} pixels, and a PNG has at most {} on a side",
                          count, columns, width, height, kMostPixels),
              "give a smaller --n, or other --columns");
}

/// The number of a class: a name, as the checkpoint has it, or digits where no class has such a name.
int32_t find_class(const std::string& text, const TrainedModel& checkpoint) {
  const std::vector<std::string>& names = checkpoint.config().run.class_names;
  const int64_t classes = labelled_classes(checkpoint.config().diffusion, checkpoint.config().unet.num_classes);
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
  wrong_usage(fmt::format("--class '{}' is no class of '{}'", text, checkpoint.path().string()), remedy);
}

int64_t low_res_count(const UNetConfig& unet, std::span<const uint8_t> low_res) {
  return std::ssize(low_res) / ir::element_count(low_res_shape(unet));
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

int grid_columns(int64_t count) {
  int64_t columns = 1;
  while (columns * columns < count) ++columns;
  return static_cast<int>(columns);
}

SamplerConfig settle_sampler(const SamplerChoice& choice, const TrainedModel& checkpoint) {
  const DiffusionConfig& diffusion = checkpoint.config().diffusion;
  SamplerConfig config = default_sampler(diffusion, choice.kind);
  config.steps = choice.steps.value_or(config.steps);
  if (config.steps > diffusion.timesteps) {
    wrong_usage(fmt::format("--steps {} is more than the {} timesteps of '{}'", config.steps, diffusion.timesteps,
                            checkpoint.path().string()),
                fmt::format("give 1 to {}", diffusion.timesteps));
  }
  config.spacing = choice.spacing.value_or(config.spacing);
  config.clipping = choice.clipping.value_or(config.clipping);
  config.batch = choice.batch.value_or(config.batch);
  const std::string sampler = fmt::format("--sampler {}", to_string(config.kind));
  // A flag that would change nothing is a mistake.
  const auto take = [](const char* flag, const std::optional<double>& given, double& field, bool read,
                       const std::string& with, const char* remedy) {
    if (!given) return;
    if (!read)
      wrong_usage(fmt::format("{} has no meaning with {}", flag, with), fmt::format("leave it out, or {}", remedy));
    field = *given;
  };
  const bool churns = config.kind == SamplerKind::euler || config.kind == SamplerKind::heun;
  const bool churned = churns && choice.churn.value_or(0) > 0;
  const bool karras = config.spacing == Spacing::karras, range = karras || diffusion.process == Process::edm;
  const std::string spacing = fmt::format("--spacing {}", to_string(config.spacing));
  take("--eta", choice.eta, config.eta, config.kind == SamplerKind::ddim, sampler, "use --sampler ddim");
  take("--churn", choice.churn, config.churn, churns, sampler, "use --sampler heun or euler");
  for (const auto& [flag, given, field] : {std::tuple{"--churn-min", &choice.churn_min, &config.churn_min},
                                           std::tuple{"--churn-max", &choice.churn_max, &config.churn_max},
                                           std::tuple{"--churn-noise", &choice.churn_noise, &config.churn_noise}}) {
    take(flag, *given, *field, churned, "no churn", "give --churn too");
  }
  take("--rho", choice.rho, config.rho, karras, spacing, "use --spacing karras");
  take("--sigma-min", choice.sigma_min, config.sigma_min, range, spacing, "use --spacing karras");
  take("--sigma-max", choice.sigma_max, config.sigma_max, range, spacing, "use --spacing karras");
  take("--percentile", choice.percentile, config.percentile, config.clipping == Clipping::dynamic,
       fmt::format("--clip {}", to_string(config.clipping)), "use --clip dynamic");
  if (choice.large_variance) {
    if (config.kind != SamplerKind::ddpm || checkpoint.config().unet.learn_sigma) {
      wrong_usage(fmt::format("--variance has no meaning with {}",
                              config.kind == SamplerKind::ddpm ? "a model that learned its variance" : sampler),
                  "leave it out, or use --sampler ddpm of a model that did not");
    }
    config.large_variance = *choice.large_variance;
  }
  config.guidance = choice.guidance.value_or(config.guidance);
  if (config.guidance != 1 && diffusion.label_dropout == 0) {
    wrong_usage(fmt::format("--guidance {}, but '{}' has not learned to draw without labels", config.guidance,
                            checkpoint.path().string()),
                "leave it out, or give a checkpoint that was trained with --label-dropout");
  }
  check(config, diffusion);
  return config;
}

void require_pictures(const TrainedModel& checkpoint) {
  const int64_t channels = checkpoint.config().unet.image_channels;
  if (channels == 1 || channels == 3 || channels == 4) return;
  wrong_usage(fmt::format("the images of '{}' have {} channels, and a picture has 1, 3 or 4",
                          checkpoint.path().string(), channels),
              "give a model of pictures; difuse convert writes these weights for other programs");
}

std::vector<float> read_weights(const TrainedModel& checkpoint, const std::string& weights,
                                const ParameterLayout& layout) {
  const std::vector<std::string> names = checkpoint.weight_names();
  if (std::ranges::find(names, weights) == names.end()) {
    wrong_usage(fmt::format("--weights '{}' is not in '{}'", weights, checkpoint.path().string()),
                fmt::format("choose from {}", fmt::join(names, ", ")));
  }
  std::vector<std::string> report;
  std::vector<float> parameters = checkpoint.parameters(weights, layout, &report);
  for (const std::string& line : report) say("{}\n", line);
  return parameters;
}

std::vector<int32_t> settle_classes(const std::optional<std::string>& given, const TrainedModel& checkpoint) {
  const UNetConfig& unet = checkpoint.config().unet;
  if (!given) return every_class(unet, checkpoint.config().diffusion);
  if (unet.num_classes == 0) {
    wrong_usage(fmt::format("--class {}, but the model of '{}' has no classes", *given, checkpoint.path().string()),
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

std::vector<uint8_t> settle_low_res(const std::optional<std::filesystem::path>& given, const TrainedModel& checkpoint,
                                    int threads, const ir::Options& environment) {
  const UNetConfig& unet = checkpoint.config().unet;
  if (!takes_low_res(unet)) {
    if (!given) return {};
    wrong_usage(fmt::format("--low-res '{}', but the model of '{}' enlarges no images", given->string(),
                            checkpoint.path().string()),
                "leave --low-res out, or give a checkpoint that was trained to enlarge");
  }
  if (!given) {
    const ir::Shape shape = low_res_shape(unet);
    wrong_usage(
        fmt::format("the model of '{}' enlarges images of {}x{}x{} (height x width x channels), and there are none",
                    checkpoint.path().string(), shape[0], shape[1], shape[2]),
        "give --low-res, a PNG or a folder of images");
  }
  return load_low_res(*given, unet, threads, environment);
}

void say_turns(const UNetConfig& unet, std::span<const uint8_t> low_res, std::span<const int32_t> images) {
  if (low_res.empty()) return;
  const int64_t count = low_res_count(unet, low_res);
  if (std::ranges::all_of(images, [count](int32_t number) { return number < count; })) return;
  say("low-res: {} image{}, taken in turn: image I enlarges number I modulo {}\n", count, count == 1 ? "" : "s", count);
}

void sample(const SampleOptions& options, const ir::Options& environment) {
  if (!options.print_schedule) {
    require_png_target(options.out);
    runtime::require_writable(options.out, 0);
  }
  const TrainedModel checkpoint = TrainedModel::open(options.checkpoint, "--checkpoint", options.foreign);
  const RunConfig& config = checkpoint.config();
  SamplerConfig sampler = settle_sampler(options.sampler, checkpoint);
  if (options.print_schedule) {
    say("{}", schedule_text(sampler, config.diffusion));
    return;
  }
  require_pictures(checkpoint);
  const std::vector<int32_t> classes = settle_classes(options.classes, checkpoint);
  const std::vector<uint8_t> low_res = settle_low_res(options.low_res, checkpoint, options.threads, environment);
  constexpr int64_t kImages = 16;
  const int64_t enlarged = low_res.empty() ? kImages : low_res_count(config.unet, low_res);
  const std::vector<int32_t> images =
      options.images.empty() ? image_numbers(options.first_index, options.count.value_or(enlarged)) : options.images;
  const auto count = static_cast<int64_t>(images.size());
  const int64_t columns = options.columns.value_or(grid_columns(count));
  require_grid_size(count, config.unet, columns);
  say_turns(config.unet, low_res, images);
  const Backend backend =
      open_backend(options.device, options.precision, options.threads, environment, options.prologues);
  constexpr int64_t kGpuBatch = 64;
  const int64_t usual = backend.target.is_cuda() ? kGpuBatch : std::max(16, options.threads);
  sampler.batch = even_batch(count, options.sampler.batch.value_or(usual));
  const ParameterLayout layout = parameter_layout(config.unet);
  const std::string weights = options.weights.value_or(checkpoint.default_weights());
  for (const std::string& note : checkpoint.notes()) say("{}\n", note);
  const std::vector<float> parameters = read_weights(checkpoint, weights, layout);

  say("{}\n", backend_line(backend));
  say("{} at step {} ({}, {} weights): {} image{}, {} {} steps, seed {}\n", checkpoint.path().string(),
      checkpoint.step(), config.run.model, weights, count, count == 1 ? "" : "s", to_string(sampler.kind),
      sampler.steps, options.seed);
  if (!classes.empty()) say("{}\n", class_line(classes, config.run.class_names));
  std::fflush(stdout);
  Sampler compiled(config.unet, config.diffusion, sampler, environment, backend);
  const auto drawn = [&] {
    CountProgress progress("drawing", "steps");
    return compiled.draw_exact({parameters, options.seed, images, classes, low_res},
                               [&progress](int64_t done, int64_t of) {
                                 progress.show(done, of);
                                 return true;
                               });
  }();
  require_finite(images, drawn);
  const std::vector<runtime::Image> tiles = to_images(config.unet, drawn);
  runtime::write_png(options.out, runtime::make_grid(tiles, static_cast<int>(columns), grid_padding(count)));
  say("{}\n", options.out.string());
}

}  // namespace difuse::models
