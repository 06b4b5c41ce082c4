#include "models/run/setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <system_error>

#include "ir/error.h"
#include "models/config/config_json.h"
#include "models/config/toml_file.h"
#include "models/config/training_table.h"
#include "models/low_res.h"
#include "models/presets.h"
#include "models/run/output_folder.h"

namespace difuse::models {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::string text_of(const json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "on" : "off";
  return value.dump();
}

/// What somebody has set; the later wins.
class Settings {
 public:
  void put(const Setting& setting) { settings_[{setting.table, setting.key}] = setting; }

  /// A flag, if it was given. `value` is what the field takes.
  template <class T, class Value>
  void flag(const char* name, const std::optional<T>& given, const char* table, const char* key, const Value& value) {
    if (!given) return;
    const json field = value(*given);
    const std::string source = field.is_boolean() ? fmt::format("{}{}", name, field.get<bool>() ? "" : "=false")
                                                  : fmt::format("{} {}", name, text_of(field));
    put({source, table, key, field});
  }
  template <class T>
  void flag(const char* name, const std::optional<T>& given, const char* table, const char* key) {
    flag(name, given, table, key, [](const T& value) -> json {
      if constexpr (std::is_enum_v<T>) {
        return std::string(to_string(value));
      } else {
        return value;
      }
    });
  }

  Setting* find(const char* table, const char* key) {
    const auto found = settings_.find({table, key});
    return found == settings_.end() ? nullptr : &found->second;
  }

  /// The configuration with what was set. Whatever differs from `resumed` is an Error.
  template <class Config>
  Config apply(const char* table, const Config& config, const Checkpoint* resumed) const {
    nlohmann::ordered_json fields = config_to_json(config);
    for (const auto& [place, setting] : settings_) {
      if (place.first != table) continue;
      auto& field = fields.at(setting.key);
      if (resumed != nullptr && json(field) != setting.value && !may_change(setting)) {
        wrong_usage(fmt::format("{} contradicts '{}', which was trained with {}", setting.source,
                                resumed->path().string(), text_of(field)),
                    "leave it out to go on with that run, or start a new one without --resume");
      }
      field = setting.value;
    }
    return config_from_json<Config>(fields, table);
  }

 private:
  /// What a run that went wrong may go on with; a file states a whole run, so it takes a flag.
  static bool may_change(const Setting& setting) {
    constexpr std::array kFlags = {"--lr ", "--clip-norm ", "--warmup ", "--weight-decay "};
    return std::ranges::any_of(kFlags, [&](const char* flag) { return setting.source.starts_with(flag); });
  }

  std::map<std::pair<std::string, std::string>, Setting> settings_;
};

Settings settings_of(const TrainOptions& options, const ConfigFile& file) {
  Settings settings;
  for (const Setting& setting : file.settings) settings.put(setting);
  const auto& size = options.image_size;
  settings.flag("--image-size", size, "model", "image_height", [](const auto& s) { return json(s.height); });
  settings.flag("--image-size", size, "model", "image_width", [](const auto& s) { return json(s.width); });
  settings.flag("--channels", options.channels, "model", "image_channels");
  settings.flag("--classes", options.classes, "model", "num_classes");
  settings.flag("--schedule", options.schedule, "diffusion", "schedule");
  settings.flag("--timesteps", options.timesteps, "diffusion", "timesteps");
  settings.flag("--process", options.process, "diffusion", "process");
  settings.flag("--prediction", options.prediction, "diffusion", "prediction");
  settings.flag("--rescale-timesteps", options.rescale_timesteps, "diffusion", "rescale_timesteps");
  settings.flag("--rescale-learned-sigmas", options.rescale_learned_sigmas, "diffusion", "rescale_learned_sigmas");
  settings.flag("--min-snr", options.min_snr, "diffusion", "min_snr_gamma");
  settings.flag("--sigma-data", options.sigma_data, "diffusion", "sigma_data");
  settings.flag("--p-mean", options.p_mean, "diffusion", "p_mean");
  settings.flag("--p-std", options.p_std, "diffusion", "p_std");
  settings.flag("--label-dropout", options.label_dropout, "diffusion", "label_dropout");
  settings.flag("--batch", options.batch, "training", "batch");
  settings.flag("--microbatch", options.microbatch, "training", "microbatch");
  settings.flag("--lr", options.lr, "training", "learning_rate");
  settings.flag("--lr-schedule", options.lr_schedule, "training", "schedule");
  settings.flag("--warmup", options.warmup, "training", "warmup");
  settings.flag("--weight-decay", options.weight_decay, "training", "weight_decay");
  settings.flag("--clip-norm", options.clip_norm, "training", "clip_norm");
  settings.flag("--ema", options.ema, "training", "ema_decays");
  settings.flag("--seed", options.seed, "run", "seed");
  settings.flag("--flip", options.flip, "run", "flip");
  settings.flag("--crop", options.crop, "run", "crop");
  settings.flag("--class-from-folder", options.class_from_folder, "run", "class_from_folder");
  return settings;
}

RunConfig preset_config(const std::string& name) {
  const Preset preset = find_preset(name);
  return {{.model = preset.name, .version = DIFUSE_VERSION}, preset.unet, preset.diffusion, preset.training};
}

/// Where a new run starts from: the preset of the flag, else the one of the file, else the defaults.
RunConfig base_config(const std::optional<std::string>& model, const fs::path& path, const ConfigFile& file) {
  if (model) return preset_config(*model);
  if (!file.preset) return {{.model = path.filename().string(), .version = DIFUSE_VERSION}, {}, {}, {}};
  try {
    return preset_config(file.preset->value.get<std::string>());
  } catch (const Error& error) {
    wrong_usage(fmt::format("{}: {}", file.preset->source, error.what()), error.remedy());
  }
}

/// A new run of that model: its own seed, data and names of classes.
RunConfig begin_from(const TrainedModel& initial) {
  const RunConfig& config = initial.config();
  return {{.model = config.run.model, .version = DIFUSE_VERSION}, config.unet, config.diffusion, config.training};
}

void require_same_model(const std::string& source, const std::string& name, const Checkpoint& resumed) {
  if (name == resumed.config().run.model) return;
  wrong_usage(fmt::format("{} contradicts '{}', which was trained with {}", source, resumed.path().string(),
                          resumed.config().run.model),
              "leave it out to go on with that run, or start a new one without --resume");
}

/// A cosine schedule has to know where it ends.
void settle_schedule_end(OptimizerConfig& optimizer, const TrainOptions& options) {
  if (optimizer.schedule != LearningRateSchedule::cosine) return;
  if (optimizer.total_steps == 0) {
    if (!options.steps) {
      wrong_usage("a cosine learning rate falls to 0 at the last step, and nothing says which that is",
                  "give --steps, or total_steps in the [training] table of --config");
    }
    optimizer.total_steps = *options.steps;
  }
  if (optimizer.warmup >= optimizer.total_steps) {
    wrong_usage(fmt::format("a warm-up of {} steps, and the cosine learning rate reaches 0 at step {}",
                            optimizer.warmup, optimizer.total_steps),
                fmt::format("use --warmup {} or less, or more steps", optimizer.total_steps / 2));
  }
  if (options.steps && *options.steps > optimizer.total_steps) {
    wrong_usage(fmt::format("--steps {}, but the cosine learning rate reaches 0 at step {}", *options.steps,
                            optimizer.total_steps),
                fmt::format("use --steps {} or less, or start a run with a longer schedule", optimizer.total_steps));
  }
}

std::string size_text(int64_t height, int64_t width, int64_t channels) {
  return fmt::format("{}x{}x{}", height, width, channels);
}

std::string size_text(const UNetConfig& unet) {
  return size_text(unet.image_height, unet.image_width, unet.image_channels);
}

bool is_possible(const UNetConfig& unet) {
  try {
    check(unet);
    if (takes_low_res(unet)) low_res_shape(unet);
  } catch (const Error&) {
    return false;
  }
  return true;
}

/// What makes images and model fit: other flags, or a preset.
std::string size_remedy(const runtime::ImageSet& images, const UNetConfig& unet) {
  const auto flags = [&](int64_t height, int64_t width, int64_t channels) {
    std::string text;
    if (images.height != unet.image_height || images.width != unet.image_width) {
      text =
          height == width ? fmt::format("--image-size {}", height) : fmt::format("--image-size {}x{}", height, width);
    }
    if (images.channels != unet.image_channels)
      text += fmt::format("{}--channels {}", text.empty() ? "" : " ", channels);
    return text;
  };
  std::string text = fmt::format("give {} to bring the images to the model's size",
                                 flags(unet.image_height, unet.image_width, unet.image_channels));
  UNetConfig theirs = unet;
  theirs.image_height = images.height, theirs.image_width = images.width, theirs.image_channels = images.channels;
  if (is_possible(theirs)) {
    text += fmt::format(", {} for a model of theirs", flags(images.height, images.width, images.channels));
  }
  std::vector<std::string> names;
  for (const Preset& preset : presets()) {
    if (preset.unet.conditioning_channels > 0) continue;
    if (size_text(preset.unet) == size_text(images.height, images.width, images.channels)) names.push_back(preset.name);
  }
  if (!names.empty()) text += fmt::format(", or use --model {}", fmt::join(names, " or --model "));
  return text;
}

void check_size(const RunConfig& config, const runtime::ImageSet& images, const TrainOptions& options) {
  const std::string found = size_text(images.height, images.width, images.channels);
  const std::string needed = size_text(config.unet);
  if (found == needed) return;
  wrong_usage(fmt::format("the model {} is for images of {} (height x width x channels), but --data '{}' has {}",
                          config.run.model, needed, options.data.string(), found),
              size_remedy(images, config.unet));
}

void check_count(const RunConfig& config, const runtime::ImageSet& images, const TrainOptions& options,
                 const Checkpoint* resumed) {
  const std::string data = options.data.string();
  if (const int64_t batch = step_images(config.training); images.count < batch) {
    wrong_usage(fmt::format("--data '{}' has {} image{}, fewer than a batch of {}", data, images.count,
                            images.count == 1 ? "" : "s", batch),
                resumed == nullptr ? fmt::format("use --batch {} or less, or more images", images.count)
                                   : "give the data that the run began with");
  }
  if (resumed != nullptr && images.count != config.run.images) {
    wrong_usage(fmt::format("--data '{}' has {} images, but '{}' was trained on {}", data, images.count,
                            resumed->path().string(), config.run.images),
                "give the data that the run began with, or start a new run without --resume");
  }
}

/// Of everything in the data that decides the numbers; 0 where the pixels were not kept. FNV-1a (Fowler, Noll, Vo) over
/// words of 8 bytes, folded after each so that its low bits know of the high ones.
uint64_t fingerprint(const runtime::ImageSet& images, bool with_labels) {
  if (images.pixels.empty()) return 0;
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&hash](std::span<const std::byte> bytes) {
    for (size_t at = 0; at < bytes.size(); at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, &bytes[at], std::min(sizeof word, bytes.size() - at));
      hash = (hash ^ word) * 0x100000001b3u;
      hash ^= hash >> 32;
    }
  };
  add(std::as_bytes(images.pixels));
  if (with_labels) add(std::as_bytes(std::span(images.labels)));
  return std::max<uint64_t>(hash, 1);
}

void check_fingerprint(const RunConfig& config, uint64_t found, const TrainOptions& options,
                       const Checkpoint& resumed) {
  if (config.run.fingerprint == 0 || found == 0 || found == config.run.fingerprint) return;
  wrong_usage(fmt::format("--data '{}' has other images or labels than '{}' was trained on", options.data.string(),
                          resumed.path().string()),
              "give the data that the run began with, or start a new run without --resume");
}

/// Names travel as JSON, which is UTF-8.
void check_names(const runtime::ImageSet& images) {
  for (const std::string& name : images.class_names) {
    try {
      static_cast<void>(json(name).dump());
    } catch (const json::type_error&) {
      wrong_usage(fmt::format("the name of the class folder '{}' is not UTF-8", name), "rename the folder");
    }
  }
}

void check_classes(const RunConfig& config, const runtime::ImageSet& images, const TrainOptions& options,
                   const Checkpoint* resumed) {
  if (config.unet.num_classes == 0) return;
  const int64_t labelled = labelled_classes(config.diffusion, config.unet.num_classes);
  try {
    if (const int64_t most = images.labels.empty() ? -1 : *std::ranges::max_element(images.labels);
        labelled < config.unet.num_classes && most >= labelled) {
      throw Error(fmt::format("the labels go to {}, and of the model's {} classes the last stands for no label "
                              "(label_dropout), so that images can have 0 to {}",
                              most, config.unet.num_classes, labelled - 1),
                  fmt::format("give --classes {}, one more than the data has", most + 2));
    }
    runtime::check_labels(images, static_cast<int>(labelled));
  } catch (const Error& error) {
    wrong_usage(fmt::format("--data '{}': {}", options.data.string(), error.what()), error.remedy());
  }
  if (resumed == nullptr || images.class_names == config.run.class_names) return;
  wrong_usage(fmt::format("the classes of --data '{}' are {}, but '{}' was trained on {}", options.data.string(),
                          fmt::join(images.class_names, ", "), resumed->path().string(),
                          fmt::join(config.run.class_names, ", ")),
              "give the data that the run began with, or start a new run without --resume");
}

/// A flag that the process does not read is a mistake; a file states every field.
void check_process_flags(Settings& settings, const DiffusionConfig& diffusion) {
  const bool edm = diffusion.process == Process::edm;
  const auto refuse = [&](const char* key) {
    const Setting* setting = settings.find("diffusion", key);
    if (setting == nullptr || !setting->source.starts_with("--")) return;
    wrong_usage(fmt::format("{} has no meaning in the {} process", setting->source, to_string(diffusion.process)),
                fmt::format("leave it out, or use --process {}", edm ? "ddpm" : "edm"));
  };
  if (edm) {
    for (const char* key : {"schedule", "prediction", "rescale_timesteps", "rescale_learned_sigmas", "min_snr_gamma"})
      refuse(key);
  } else {
    for (const char* key : {"sigma_data", "p_mean", "p_std"}) refuse(key);
  }
}

/// A model that enlarges images sees a small copy of them.
void check_second_image(const UNetConfig& unet, const TrainOptions& options) {
  if (!takes_low_res(unet)) return;
  if (options.channels && unet.conditioning_channels != unet.image_channels) {
    wrong_usage(
        fmt::format("--channels {}, but the image that the model enlarges has {} channels", *options.channels,
                    unet.conditioning_channels),
        fmt::format("leave it out, or set conditioning_channels = {} in [model] of --config", *options.channels));
  }
  low_res_shape(unet);
}

/// Throws the Error again, naming the file where there is one.
[[noreturn]] void say_in_which_file(const TrainOptions& options, const Error& error) {
  if (!options.config) throw error;
  wrong_usage(fmt::format("--config '{}': {}", options.config->string(), error.what()), error.remedy());
}

/// Preset or checkpoint, then the file, then the flags.
RunConfig merge(const TrainOptions& options, const Checkpoint* resumed, const TrainedModel* initial = nullptr) {
  const fs::path path = options.config.value_or(fs::path());
  const ConfigFile file = options.config ? read_config_file(path) : ConfigFile();
  RunConfig config = resumed != nullptr   ? resumed->config()
                     : initial != nullptr ? begin_from(*initial)
                                          : base_config(options.model, path, file);
  if (resumed != nullptr && options.model) require_same_model("--model " + *options.model, *options.model, *resumed);
  if (resumed != nullptr && file.preset && !options.model) {
    require_same_model(file.preset->source, file.preset->value.get<std::string>(), *resumed);
  }

  Settings settings = settings_of(options, file);
  TrainingTable table = to_table(config.training);
  if (Setting* part = settings.find("training", "microbatch")) {
    const Setting* whole = settings.find("training", "batch");
    if (part->value == (whole != nullptr ? whole->value : json(table.batch))) part->value = 0;  // All at once.
  }
  config.unet = settings.apply("model", config.unet, resumed);
  const Process before = config.diffusion.process;
  if (const Setting* asked = settings.find("diffusion", "process"); resumed == nullptr && asked != nullptr) {
    // What only the process of a preset or of weights knows would be refused, though nobody asked for it.
    config.diffusion = with_process(config.diffusion, *parse_process(asked->value.get<std::string>()));
  }
  const bool own_times = resumed == nullptr && (initial == nullptr || config.diffusion.process != before);
  if (own_times && config.unet.family == UNetFamily::strided) {
    // Timesteps of up to 999 as a channel beside pixels of about 1 would drown them.
    const Setting* rescaled = settings.find("diffusion", "rescale_timesteps");
    const bool other_unit = rescaled != nullptr && rescaled->value == true;
    config.diffusion.unit_timesteps = config.diffusion.process == Process::ddpm && !other_unit;
  }
  config.diffusion = settings.apply("diffusion", config.diffusion, resumed);
  check_process_flags(settings, config.diffusion);
  table = settings.apply("training", table, resumed);
  config.run = settings.apply("run", config.run, resumed);
  try {
    config.training = from_table(table);
    check(config.unet);
    check_second_image(config.unet, options);
    if (options.rescale_learned_sigmas.value_or(false) && !config.unet.learn_sigma) {
      wrong_usage("--rescale-learned-sigmas, but the model learns no variance",
                  "leave it out, or set learn_sigma = true in [model] of --config");
    }
    check(config.diffusion);
  } catch (const Error& error) {
    say_in_which_file(options, error);
  }
  return config;
}

}  // namespace

RunConfig settle_config(const TrainOptions& options, const Checkpoint* resumed, const TrainedModel* initial) {
  RunConfig config = merge(options, resumed, initial);
  if (options.on_bad_image) config.run.skip_bad_images = *options.on_bad_image == runtime::OnBadImage::skip;

  settle_schedule_end(config.training.optimizer, options);
  try {
    check(config.training.optimizer);
  } catch (const Error& error) {
    say_in_which_file(options, error);
  }
  if (options.class_from_folder.value_or(false) && options.classes == 0) {
    wrong_usage("--class-from-folder gives labels, and --classes 0 says that the model takes none",
                "leave one of them out");
  }
  return config;
}

RunConfig config_of_file(const fs::path& path) {
  TrainOptions options;
  options.config = path;
  return merge(options, nullptr);
}

void require_own_folder(const fs::path& out, const fs::path* resumed) {
  if (!holds_checkpoint(out)) return;
  if (resumed == nullptr) {
    wrong_usage(fmt::format("--out '{}' holds the checkpoint of an earlier run", out.string()),
                "add --resume to go on with it, or choose another folder");
  }
  // The file may be a link to elsewhere, or a link from elsewhere into the folder.
  std::error_code error;
  const fs::path file = fs::absolute(*resumed, error);
  if (!is_within(file.parent_path(), out) && !is_within(file, out)) {
    wrong_usage(fmt::format("--out '{}' holds the checkpoint of another run than --resume '{}'", out.string(),
                            resumed->string()),
                "choose another folder for --out");
  }
}

void adopt_data(RunConfig& config, const runtime::ImageSet& images, const TrainOptions& options,
                const Checkpoint* resumed) {
  check_size(config, images, options);
  check_count(config, images, options, resumed);
  check_names(images);
  if (resumed == nullptr && config.run.class_from_folder && config.unet.num_classes == 0) {
    config.unet.num_classes = static_cast<int64_t>(images.class_names.size()) + (config.diffusion.label_dropout > 0);
    check(config.unet);
  }
  check_model(config.diffusion, config.unet.num_classes, config.unet.learn_sigma);
  check_classes(config, images, options, resumed);
  const uint64_t found = fingerprint(images, config.unet.num_classes > 0);
  if (resumed != nullptr) check_fingerprint(config, found, options, *resumed);
  if (resumed == nullptr) config.run.fingerprint = found;
  config.run.images = images.count;
  config.run.class_names = images.class_names;
}

}  // namespace difuse::models
