#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "ir/error.h"
#include "models/checkpoint.h"
#include "models/cli/commands.h"
#include "models/cli/flags.h"
#include "models/cli/names.h"
#include "models/config/config_json.h"
#include "models/config/nearest.h"
#include "models/config/toml_file.h"
#include "models/run/console.h"
#include "models/run/data.h"
#include "models/run/setup.h"
#include "models/run/units.h"
#include "models/unet.h"
#include "models/weights/diffusers.h"
#include "models/weights/trained_model.h"
#include "runtime/data/folder/scan.h"
#include "runtime/data/unet_cu_data.h"

namespace difuse::models {
namespace {

namespace fs = std::filesystem;

template <class Config>
void print_config(const char* title, const Config& config) {
  say("\n{}\n", title);
  const nlohmann::ordered_json fields = config_to_json(config);
  for (const auto& [name, value] : fields.items()) {
    say("  {:<22} {}\n", name, value.is_string() ? value.template get<std::string>() : value.dump());
  }
}

void print_model(const RunConfig& config) {
  const ParameterLayout layout = parameter_layout(config.unet);
  say("parameters      {} in {} tensors\n", format_count(layout.parameters()), layout.specs().size());
  say("forward         {:.3f} GFLOP an image (a multiply-add counts as two)\n",
      static_cast<double>(forward_flops(config.unet)) / 1e9);
  print_config("model", config.unet);
  print_config("diffusion", config.diffusion);
  print_config("training", to_table(config.training));
  say("\ntensors\n");
  for (const ParameterSpec& spec : layout.specs()) {
    say("  {:<48} f32{}\n", spec.name, ir::to_string(spec.shape));
  }
}

void inspect_preset(const Preset& preset) {
  say("preset          {}: {}\n", preset.name, preset.description);
  print_model({{}, preset.unet, preset.diffusion, preset.training});
}

void inspect_foreign(const fs::path& path) {
  const TrainedModel model = TrainedModel::open(path, "inspect:", {});
  for (const std::string& note : model.notes()) say("{}\n", note);
  print_model(model.config());
}

void inspect_checkpoint(const fs::path& path) {
  const fs::path file = find_checkpoint(path, "inspect:");
  if (!is_difuse_checkpoint(file)) {
    inspect_foreign(file);
    return;
  }
  const Checkpoint checkpoint(file);
  const RunConfig& config = checkpoint.config();
  say("checkpoint      {}\n", checkpoint.path().string());
  say("size            {}\n", format_bytes(fs::file_size(checkpoint.path())));
  say("step            {}\n", checkpoint.step());
  say("images seen     {} of a data set of {}\n", format_count(static_cast<int64_t>(checkpoint.cursor().position)),
      format_count(config.run.images));
  say("preset          {}, seed {}, flip {}, difuse {}\n", config.run.model, config.run.seed,
      config.run.flip ? "on" : "off", config.run.version);
  for (size_t i = 0; i < config.run.class_names.size(); ++i) {
    say("class {:>9}  {}\n", i, config.run.class_names[i]);
  }
  print_model(config);
}

void inspect_file(const fs::path& path) {
  say("configuration   {}\n", path.string());
  print_model(config_of_file(path));
}

/// Whether a file begins like an IDX file, plain or gzip, or is named as an image; everything else is taken for a
/// checkpoint, whose reader knows many kinds of foreign files.
bool looks_like_data(const fs::path& path) {
  std::array<char, 3> begin{};
  std::ifstream(path, std::ios::binary).read(begin.data(), begin.size());
  const bool gzip = begin[0] == '\x1f' && begin[1] == '\x8b';
  return gzip || runtime::has_image_name(path) || runtime::is_unet_cu_data(path) ||
         (begin[0] == 0 && begin[1] == 0 && begin[2] == 8) || path.filename().string().ends_with("-ubyte");
}

enum class Kind : uint8_t { preset, file, checkpoint, foreign, data };

/// Error when it is none of these.
Kind kind_of(const std::string& what) {
  std::error_code ignored;
  if (fs::exists(what, ignored)) {
    if (!find_diffusers_folder(what).empty()) return Kind::foreign;
    if (fs::is_directory(what, ignored)) return holds_checkpoint(what) ? Kind::checkpoint : Kind::data;
    if (!fs::is_regular_file(what, ignored)) {
      throw Error(fmt::format("'{}' is a device or a pipe, not a file", what), "give the path of a file or folder",
                  ExitCode::wrong_usage);
    }
    if (fs::path(what).extension() == ".toml") return Kind::file;
    return looks_like_data(what) ? Kind::data : Kind::checkpoint;
  }
  const std::vector<std::string> names = preset_names();
  if (std::ranges::find(names, what) != names.end()) return Kind::preset;
  throw Error(fmt::format("'{}' is neither a preset nor an existing path", what),
              choose_from(what, names) + ", or give the path of a checkpoint, a run's folder, a TOML file or images",
              ExitCode::wrong_usage);
}

void print_toml(Kind kind, const std::string& what) {
  if (kind == Kind::preset) {
    const Preset preset = find_preset(what);
    say("{}", to_toml(preset.name, preset.unet, preset.diffusion, preset.training));
    return;
  }
  if (kind == Kind::data) {
    throw Error(fmt::format("--toml prints configurations, and '{}' is data", what),
                "give a preset, a TOML file or a checkpoint", ExitCode::wrong_usage);
  }
  const RunConfig config =
      kind == Kind::file ? config_of_file(what) : TrainedModel::open(what, "inspect:", {}).config();
  const std::vector<std::string> names = preset_names();
  const bool named = std::ranges::find(names, config.run.model) != names.end();
  say("{}", to_toml(named ? config.run.model : "", config.unet, config.diffusion, config.training));
}

int run_inspect(const std::string& what, bool toml) {
  if (what.empty()) {
    missing_flag("inspect", "a preset, a checkpoint, a TOML file or a data path", "difuse inspect tiny");
  }
  const Kind kind = kind_of(what);
  if (toml) {
    print_toml(kind, what);
  } else if (kind == Kind::preset) {
    inspect_preset(find_preset(what));
  } else if (kind == Kind::file) {
    inspect_file(what);
  } else if (kind == Kind::checkpoint) {
    inspect_checkpoint(what);
  } else if (kind == Kind::foreign) {
    inspect_foreign(what);
  } else {
    describe_data(what);
  }
  return 0;
}

}  // namespace

Action add_inspect(CLI::App& app) {
  struct Flags {
    std::string what;
    bool toml = false;
  };
  auto flags = std::make_shared<Flags>();
  app.add_option("what", flags->what,
                 fmt::format("A preset ({}), a checkpoint or run folder, a TOML file, or images",
                             fmt::join(preset_names(), ", ")))
      ->type_name("WHAT");
  app.add_flag("--toml", flags->toml, "Print the configuration as a TOML file for difuse train --config");
  return [flags](const CommandContext&) { return run_inspect(flags->what, flags->toml); };
}

}  // namespace difuse::models
