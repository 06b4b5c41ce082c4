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
#include "models/cli/nearest.h"
#include "models/config_json.h"
#include "models/run/units.h"
#include "models/unet.h"
#include "runtime/data/idx.h"

namespace difuse::models {
namespace {

namespace fs = std::filesystem;

template <class Config>
void print_config(const char* title, const Config& config) {
  fmt::print("\n{}\n", title);
  const nlohmann::ordered_json fields = config_to_json(config);
  for (const auto& [name, value] : fields.items()) {
    fmt::print("  {:<22} {}\n", name, value.is_string() ? value.template get<std::string>() : value.dump());
  }
}

void print_model(const RunConfig& config) {
  const ParameterLayout layout = parameter_layout(config.unet);
  fmt::print("parameters      {} in {} tensors\n", format_count(layout.parameters()), layout.specs().size());
  fmt::print("forward         {:.3f} GFLOP an image (a multiply-add counts as two)\n",
             static_cast<double>(forward_flops(config.unet)) / 1e9);
  print_config("model", config.unet);
  print_config("diffusion", config.diffusion);
  print_config("training", config.training);
  fmt::print("\ntensors\n");
  for (const ParameterSpec& spec : layout.specs()) {
    fmt::print("  {:<48} f32{}\n", spec.name, ir::to_string(spec.shape));
  }
}

void inspect_preset(const Preset& preset) {
  fmt::print("preset          {}: {}\n", preset.name, preset.description);
  print_model({{}, preset.unet, preset.diffusion, preset.training});
}

void inspect_checkpoint(const fs::path& path) {
  const Checkpoint checkpoint(find_checkpoint(path, "inspect:"));
  const RunConfig& config = checkpoint.config();
  fmt::print("checkpoint      {}\n", checkpoint.path().string());
  fmt::print("size            {}\n", format_bytes(fs::file_size(checkpoint.path())));
  fmt::print("step            {}\n", checkpoint.step());
  fmt::print("images seen     {} of a data set of {}\n",
             format_count(static_cast<int64_t>(checkpoint.cursor().position)), format_count(config.run.images));
  fmt::print("preset          {}, seed {}, flip {}, difuse {}\n", config.run.model, config.run.seed,
             config.run.flip ? "on" : "off", config.run.version);
  print_model(config);
}

void inspect_data(const fs::path& path) {
  const runtime::ImageSet images = runtime::read_idx(path);
  fmt::print("data            {}\n", path.string());
  fmt::print("summary         {}\n", images.summary);
  fmt::print("images          {} of {}x{}x{} (height x width x channels)\n", format_count(images.count), images.height,
             images.width, images.channels);
  if (images.labels.empty()) return;
  std::map<int32_t, int64_t> counts;
  for (const int32_t label : images.labels) ++counts[label];
  fmt::print("labels\n");
  for (const auto& [label, count] : counts) fmt::print("  {:<6} {}\n", label, format_count(count));
}

/// Whether a file begins like an IDX file, plain or gzip; everything else is taken for a checkpoint, whose reader knows
/// many kinds of foreign files.
bool looks_like_data(const fs::path& path) {
  std::array<char, 3> begin{};
  std::ifstream(path, std::ios::binary).read(begin.data(), begin.size());
  const bool gzip = begin[0] == '\x1f' && begin[1] == '\x8b';
  return gzip || (begin[0] == 0 && begin[1] == 0 && begin[2] == 8) || path.filename().string().ends_with("-ubyte");
}

int run_inspect(const std::string& what) {
  const std::vector<std::string> names = preset_names();
  if (what.empty()) {
    missing_flag("inspect", "a preset, a checkpoint or a data path", "difuse inspect tiny");
  }
  std::error_code ignored;
  if (!fs::exists(what, ignored)) {
    if (std::ranges::find(names, what) != names.end()) {
      inspect_preset(find_preset(what));
      return 0;
    }
    throw Error(fmt::format("'{}' is neither a preset nor an existing path", what),
                choose_from(what, names) + ", or give the path of a checkpoint, a run's folder or images",
                ExitCode::wrong_usage);
  }
  const bool data = fs::is_directory(what, ignored) ? !holds_checkpoint(what) : looks_like_data(what);
  if (data) {
    inspect_data(what);
  } else {
    inspect_checkpoint(what);
  }
  return 0;
}

}  // namespace

Action add_inspect(CLI::App& app) {
  auto what = std::make_shared<std::string>();
  app.add_option("what", *what,
                 fmt::format("A preset ({}), a checkpoint or run folder, or images", fmt::join(preset_names(), ", ")))
      ->type_name("WHAT");
  return [what](const CommandContext&) { return run_inspect(*what); };
}

}  // namespace difuse::models
