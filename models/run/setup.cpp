#include "models/run/setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <system_error>

#include "ir/error.h"
#include "models/presets.h"

namespace difuse::models {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void wrong(const std::string& message, std::string remedy) {
  throw Error(message, std::move(remedy), ExitCode::wrong_usage);
}

std::string text_of(const std::string& value) { return value; }
std::string text_of(bool value) { return value ? "on" : "off"; }
std::string text_of(NoiseSchedule value) { return std::string(to_string(value)); }
std::string text_of(const std::vector<double>& values) { return fmt::format("{}", fmt::join(values, ",")); }
template <class Number>
std::string text_of(Number value) {
  return fmt::format("{}", value);
}

/// Puts flags into a configuration.
class Settler {
 public:
  explicit Settler(const Checkpoint* resumed) : resumed_(resumed) {}

  template <class T>
  void operator()(const char* flag, const std::optional<T>& given, T& value) const {
    if (!given) return;
    if (resumed_ != nullptr && *given != value) {
      wrong(fmt::format("{} {} contradicts '{}', which was trained with {}", flag, text_of(*given),
                        resumed_->path().string(), text_of(value)),
            fmt::format("leave {} out to go on with that run, or start a new one without --resume", flag));
    }
    value = *given;
  }

 private:
  const Checkpoint* resumed_;
};

std::string size_text(int64_t height, int64_t width, int64_t channels) {
  return fmt::format("{}x{}x{}", height, width, channels);
}

std::string size_text(const UNetConfig& unet) {
  return size_text(unet.image_height, unet.image_width, unet.image_channels);
}

/// What fits the images: presets, or other images.
std::string size_remedy(const std::string& found, const std::string& needed) {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) {
    if (size_text(preset.unet) == found) names.push_back(preset.name);
  }
  if (names.empty()) return fmt::format("give images of {}; no preset is for {}", needed, found);
  return fmt::format("use --model {}, or give images of {}", fmt::join(names, " or --model "), needed);
}

}  // namespace

RunConfig settle_config(const TrainOptions& options, const Checkpoint* resumed) {
  RunConfig config;
  if (resumed != nullptr) {
    config = resumed->config();
  } else {
    const Preset preset = find_preset(options.model.value());
    config = {{.model = preset.name, .version = DIFUSE_VERSION}, preset.unet, preset.diffusion, preset.training};
  }
  OptimizerConfig& optimizer = config.training.optimizer;
  const Settler settle(resumed);
  settle("--model", options.model, config.run.model);
  settle("--seed", options.seed, config.run.seed);
  settle("--flip", options.flip, config.run.flip);
  settle("--batch", options.batch, config.training.batch);
  settle("--lr", options.lr, optimizer.learning_rate);
  settle("--warmup", options.warmup, optimizer.warmup);
  settle("--weight-decay", options.weight_decay, optimizer.weight_decay);
  settle("--clip-norm", options.clip_norm, optimizer.clip_norm);
  settle("--ema", options.ema, optimizer.ema_decays);
  settle("--schedule", options.schedule, config.diffusion.schedule);
  settle("--timesteps", options.timesteps, config.diffusion.timesteps);

  check(config.unet);
  check(config.diffusion);
  check(optimizer);
  if (config.unet.learn_sigma || config.unet.num_classes > 0) {
    wrong(fmt::format("--model {} {}, which this version does not train", config.run.model,
                      config.unet.learn_sigma ? "learns the variance" : "is class-conditional"),
          "choose another --model; difuse inspect describes each");
  }
  return config;
}

void require_own_folder(const fs::path& out, const fs::path* resumed) {
  if (!holds_checkpoint(out)) return;
  if (resumed == nullptr) {
    wrong(fmt::format("--out '{}' holds the checkpoint of an earlier run", out.string()),
          "add --resume to go on with it, or choose another folder");
  }
  std::error_code error;
  const fs::path inside = fs::weakly_canonical(*resumed, error).lexically_relative(fs::weakly_canonical(out, error));
  if (inside.empty() || *inside.begin() == "..") {
    wrong(fmt::format("--out '{}' holds the checkpoint of another run than --resume '{}'", out.string(),
                      resumed->string()),
          "choose another folder for --out");
  }
}

void check_data(const runtime::ImageSet& images, const fs::path& data, const RunConfig& config,
                const Checkpoint* resumed) {
  const std::string found = size_text(images.height, images.width, images.channels);
  const std::string needed = size_text(config.unet);
  if (found != needed) {
    wrong(fmt::format("--model {} is for images of {} (height x width x channels), but --data '{}' has {}",
                      config.run.model, needed, data.string(), found),
          size_remedy(found, needed));
  }
  if (images.count < config.training.batch) {
    wrong(fmt::format("--data '{}' has {} image{}, fewer than a batch of {}", data.string(), images.count,
                      images.count == 1 ? "" : "s", config.training.batch),
          resumed == nullptr ? fmt::format("use --batch {} or less, or more images", images.count)
                             : "give the data that the run began with");
  }
  if (resumed != nullptr && images.count != config.run.images) {
    wrong(fmt::format("--data '{}' has {} images, but '{}' was trained on {}", data.string(), images.count,
                      resumed->path().string(), config.run.images),
          "give the data that the run began with, or start a new run without --resume");
  }
}

}  // namespace difuse::models
