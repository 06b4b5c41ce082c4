#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>

#include "ir/error.h"
#include "models/cli/commands.h"
#include "models/cli/flags.h"
#include "models/cli/names.h"
#include "models/run/console.h"
#include "models/run/units.h"
#include "models/unet.h"
#include "models/weights/export.h"
#include "models/weights/trained_model.h"
#include "runtime/atomic_file.h"

namespace difuse::models {
namespace {

struct ConvertFlags {
  WeightsOptions options;
  std::string from, to, config;
  std::optional<std::string> format, weights;
};

WeightsFormat format_of(const ConvertFlags& flags) {
  if (!flags.format) return WeightsFormat::difuse;
  if (*flags.format == "diffusers") return WeightsFormat::diffusers;
  return *flags.format == "safetensors" ? WeightsFormat::safetensors : WeightsFormat::difuse;
}

/// A slip must not cost a file that something else needs, nor give one a name that stands for another format.
void require_free(const std::filesystem::path& to, WeightsFormat format) {
  constexpr std::array kOthers = {".pt", ".pth", ".bin", ".ckpt"};
  if (format != WeightsFormat::diffusers && std::ranges::find(kOthers, to.extension()) != kOthers.end()) {
    throw Error(fmt::format("--to '{}' has the name of a format that is not written", to.string()),
                "give a name that ends in .safetensors", ExitCode::wrong_usage);
  }
  std::error_code ignored;
  if (!std::filesystem::exists(to, ignored)) {
    if (format != WeightsFormat::diffusers) runtime::require_writable(to, 0);
    return;
  }
  throw Error(fmt::format("--to '{}' exists and is not replaced", to.string()), "choose another name, or move it away",
              ExitCode::wrong_usage);
}

int run_convert(ConvertFlags& flags) {
  constexpr const char* kExample = "difuse convert --from model.pt --model adm-imagenet64 --to model.safetensors";
  if (flags.from.empty()) missing_flag("convert", "--from", kExample);
  if (flags.to.empty()) missing_flag("convert", "--to", kExample);
  if (!flags.config.empty()) flags.options.config = flags.config;
  const WeightsFormat format = format_of(flags);
  require_free(flags.to, format);
  const TrainedModel model = TrainedModel::open(flags.from, "--from", flags.options);
  for (const std::string& note : model.notes()) say("{}\n", note);
  const std::string weights = flags.weights.value_or(model.default_weights());
  const std::vector<std::string> names = model.weight_names();
  if (std::ranges::find(names, weights) == names.end()) parse_choice("--weights", weights, names);
  const ParameterLayout layout = parameter_layout(model.config().unet);
  std::vector<std::string> report;
  const std::vector<float> parameters = model.parameters(weights, layout, &report);
  for (const std::string& line : report) say("{}\n", line);
  if (format != WeightsFormat::difuse && !model.config().run.class_names.empty()) {
    say("the names of the classes are not written: the format has numbers alone\n");
  }
  say("{} parameters in {} tensors ({} weights)\n", format_count(layout.parameters()), layout.specs().size(), weights);
  export_weights(format, flags.to, model.config(), layout, parameters);
  say("{}\n", flags.to);
  return 0;
}

}  // namespace

Action add_convert(CLI::App& app) {
  auto flags = std::make_shared<ConvertFlags>();
  add_path(app, "--from", flags->from,
           "A checkpoint or run folder, a .pt file, safetensors, a diffusers folder, or a .bin file of unet.cu");
  add_path(app, "--to", flags->to, "The file (diffusers: folder) to write");
  add_choice(app, "--format", flags->format, {"difuse", "diffusers", "safetensors"},
             "What to write: a checkpoint, a UNet2DModel folder, or guided-diffusion's names in one file", "difuse");
  add_choice(app, "--model", flags->options.model, preset_names(), "What the weights are of, where they do not say it",
             "the preset of these shapes");
  add_path(app, "--config", flags->config, "The same as a TOML file");
  add_text(app, "--weights", flags->weights, "ema|raw|ema_1...", "Averaged weights, or those of the last step",
           "ema where there is one");
  app.add_flag("--allow-partial", flags->options.allow_partial,
               "Take the tensors that fit; the others start as in training");
  return [flags](const CommandContext&) { return run_convert(*flags); };
}

}  // namespace difuse::models
