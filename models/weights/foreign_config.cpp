#include "models/weights/foreign_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "ir/error.h"
#include "models/config/config_json.h"
#include "models/config/toml_file.h"
#include "models/presets.h"
#include "models/weights/adm.h"
#include "models/weights/trained_model.h"

namespace difuse::models {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

/// The fields, with those that mean one thing in several ways brought to one.
ordered_json fields_of(UNetConfig config) {
  std::ranges::sort(config.attention_resolutions);
  std::ranges::sort(config.decoder_attention_resolutions);
  std::vector<Resampling> down, up;
  for (int64_t level = 0; level + 1 < config.levels(); ++level) {
    down.push_back(config.downsampling(level));
    up.push_back(config.upsampling(level));
  }
  config.encoder_resampling = down;
  config.decoder_resampling = up;
  config.conv_resample = true;
  config.resblock_updown = false;
  return config_to_json(config);
}

/// What the options say: a preset whole, then lines of the file.
struct Said {
  std::string source;          ///< "--model tiny"
  std::optional<Preset> base;  ///< Without it only the settings are said.
  ConfigFile file;
};

Said said_by(const WeightsOptions& options) {
  Said said;
  if (options.config) {
    said.file = read_config_file(*options.config);
    said.source = fmt::format("--config '{}'", options.config->string());
    if (said.file.preset) said.base = find_preset(said.file.preset->value.get<std::string>());
  }
  if (options.model) {
    said.base = find_preset(*options.model);
    said.source = fmt::format("--model {}{}", *options.model, options.config ? " and " + said.source : std::string());
  }
  return said;
}

/// Applies the lines of the file; their keys are put into `keys`.
template <class Config>
Config apply(const Config& config, const char* table, const Said& said, std::set<std::string>& keys) {
  ordered_json fields = config_to_json(config);
  for (const Setting& setting : said.file.settings) {
    if (setting.table != table) continue;
    fields[setting.key] = setting.value;
    keys.insert(setting.key);
  }
  return config_from_json<Config>(fields, table);
}

/// `config` in the process that the file asks for.
DiffusionConfig in_process_of(const DiffusionConfig& config, const Said& said) {
  const auto asked = std::ranges::find_if(said.file.settings, [](const Setting& setting) {
    return setting.table == "diffusion" && setting.key == "process";
  });
  if (asked == said.file.settings.end()) return config;
  return with_process(config, *parse_process(asked->value.get<std::string>()));
}

/// Takes from `from` the fields that are open.
UNetConfig complete(const ForeignConfig& described, const UNetConfig& from) {
  ordered_json fields = config_to_json(described.unet);
  const ordered_json given = config_to_json(from);
  for (const std::string& name : described.unknown) fields[name] = given.at(name);
  return config_from_json<UNetConfig>(fields, "model");
}

/// The first field that both know and that differs, as text; empty when there is none.
std::string difference(const UNetConfig& file, const UNetConfig& said) {
  const ordered_json a = fields_of(file), b = fields_of(said);
  for (const auto& [name, value] : a.items()) {
    if (value != b.at(name))
      return fmt::format("{} = {}, and the weights have {}", name, b.at(name).dump(), value.dump());
  }
  return {};
}

void require_no_difference(const fs::path& path, const UNetConfig& file, const UNetConfig& said,
                           const std::string& source) {
  const std::string found = difference(file, said);
  if (found.empty()) return;
  wrong_usage(fmt::format("{} contradicts '{}': {}", source, path.string(), found),
              "leave it out, or give the model that the weights are of");
}

/// The same numbers of channels may be those of an image, or of two and a learned variance: what the user says counts.
ForeignConfig with_channels(ForeignConfig described, const Said& said) {
  UNetConfig& unet = described.unet;
  std::optional<int64_t> channels;
  if (said.base) channels = said.base->unet.image_channels;
  for (const Setting& setting : said.file.settings) {
    if (setting.table == "model" && setting.key == "image_channels") channels = setting.value.get<int64_t>();
  }
  const int64_t in = unet.input_channels(), out = unet.out_channels();
  if (!channels || described.unknown.contains("image_channels") || *channels > in) return described;
  if (out != *channels && out != 2 * *channels) return described;
  unet.image_channels = *channels;
  settle_channels(unet, in, out);
  if (unet.conditioning_channels == 0) described.unknown.erase("low_res_factor");
  if (unet.conditioning_channels > 0) described.unknown.insert("low_res_factor");
  return described;
}

/// What decides an output and no tensor shows: nothing may be guessed here.
std::vector<std::string> essential(const ForeignConfig& described) {
  constexpr std::array kNames = {"image_height",         "image_width",    "image_channels", "learn_sigma",
                                 "use_scale_shift_norm", "low_res_factor", "num_heads",      "qkv_order"};
  std::vector<std::string> names;
  for (const char* name : kNames) {
    const bool heads = std::string_view(name).starts_with("num_") || std::string_view(name).starts_with("qkv");
    if (heads && described.unet.family == UNetFamily::strided) continue;
    if (std::string_view(name) == "low_res_factor" && described.unet.conditioning_channels == 0) continue;
    if (described.unknown.contains(name)) names.emplace_back(name);
  }
  return names;
}

/// The preset that agrees with everything that the file says.
std::optional<Preset> matching_preset(const fs::path& path, const ForeignConfig& described) {
  std::vector<Preset> found;
  for (const Preset& preset : presets()) {
    if (difference(complete(described, preset.unet), preset.unet).empty()) {
      found.push_back(preset);
    }
  }
  if (found.empty()) return std::nullopt;
  UNetConfig first = found.front().unet;
  first.dropout = 0;  // Of no meaning for weights that are there.
  for (const Preset& other : found) {
    UNetConfig config = other.unet;
    config.dropout = 0;
    if (config == first) continue;
    wrong_usage(fmt::format("the weights of '{}' fit {} and {}", path.string(), found.front().name, other.name),
                fmt::format("say which it is: --model {} or --model {}", found.front().name, other.name));
  }
  return found.front();
}

RunConfig run_config(std::string name, const UNetConfig& unet, const DiffusionConfig& diffusion,
                     const TrainingConfig& training) {
  RunConfig config{{.model = std::move(name), .version = DIFUSE_VERSION}, unet, diffusion, training};
  return config;
}

}  // namespace

RunConfig settle_foreign_config(const fs::path& path, const ForeignConfig& given, const WeightsOptions& options) {
  const fs::path whole = fs::absolute(path).lexically_normal();  // "." and "unet/" have names too.
  const std::string file_name = whole.has_filename() ? whole.filename() : whole.parent_path().filename();
  Said said = said_by(options);
  const ForeignConfig described = with_channels(given, said);
  if (const std::vector<std::string> open = essential(described); !said.base && !options.config && !open.empty()) {
    said.base = matching_preset(path, described);
    if (!said.base) {
      wrong_usage(fmt::format("'{}' does not say all of its model, and no preset has its shapes; open are {}",
                              path.string(), fmt::join(open, ", ")),
                  "give --model PRESET, or --config FILE with these keys in its table [model]");
    }
  }
  std::set<std::string> keys;
  const UNetConfig wanted = apply(said.base ? said.base->unet : described.unet, "model", said, keys);
  const UNetConfig unet = complete(described, wanted);
  require_no_difference(path, unet, wanted, said.source);
  if (!said.base) {
    std::vector<std::string> open = essential(described);
    std::erase_if(open, [&](const std::string& name) {
      return keys.contains(name) || (name == "num_heads" && wanted.num_head_channels > 0);
    });
    if (!open.empty()) {
      wrong_usage(fmt::format("'{}' does not say all of its model; open are {}", path.string(), fmt::join(open, ", ")),
                  options.config ? "add these keys to the table [model] of --config"
                                 : "give --config FILE with these keys in its table [model]");
    }
  }
  const DiffusionConfig known = said.base ? said.base->diffusion : DiffusionConfig();
  const DiffusionConfig diffusion =
      apply(in_process_of(described.diffusion.value_or(known), said), "diffusion", said, keys);
  check(unet);
  check(diffusion);
  return run_config(said.base ? said.base->name : file_name, unet, diffusion,
                    said.base ? said.base->training : TrainingConfig{});
}

void require_same_config(const fs::path& path, const UNetConfig& unet, const WeightsOptions& options) {
  const Said said = said_by(options);
  if (said.source.empty()) return;
  std::set<std::string> keys;
  require_no_difference(path, unet, apply(said.base ? said.base->unet : unet, "model", said, keys), said.source);
}

}  // namespace difuse::models
