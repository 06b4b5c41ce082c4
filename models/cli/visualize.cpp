#include "models/visualize.h"

#include <fmt/format.h>

#include <memory>

#include "ir/error.h"
#include "models/cli/commands.h"
#include "models/cli/flags.h"
#include "models/cli/names.h"
#include "models/cli/sampler_flags.h"
#include "models/run/interrupt.h"

namespace difuse::models {
namespace {

struct VisualizeFlags {
  VisualizeOptions options;
  SamplerFlags sampler;
  std::string checkpoint, out, data, data_cache, low_res, config;
  std::optional<std::string> only, seeds;
  std::optional<int64_t> threads;
  std::optional<uint64_t> seed;
};

int run_visualize(VisualizeFlags& flags, const CommandContext& context) {
  using Part = VisualizeOptions::Part;
  constexpr const char* kExample = "difuse visualize --checkpoint runs/a --data images --out pictures";
  constexpr size_t kMostColumns = 64;
  if (flags.checkpoint.empty()) missing_flag("visualize", "--checkpoint", kExample);
  if (flags.out.empty()) missing_flag("visualize", "--out", kExample);
  VisualizeOptions& options = flags.options;
  options.checkpoint = flags.checkpoint;
  options.out = flags.out;
  options.data = flags.data;
  options.data_cache = flags.data_cache;
  if (flags.only) {
    options.only = *flags.only == "forward" ? Part::forward : *flags.only == "reverse" ? Part::reverse : Part::samplers;
  }
  options.images = parse_seeds(flags.seeds.value_or("0-7"), kMostColumns);
  options.seed = flags.seed.value_or(0);
  options.sampler = flags.sampler.choice();
  if (!flags.low_res.empty()) options.low_res = flags.low_res;
  if (!flags.config.empty()) options.foreign.config = flags.config;
  options.threads = resolve_threads(flags.threads);
  try {
    visualize(options, context.options);
  } catch (const Interrupted& stop) {
    return 128 + stop.signal;
  }
  return 0;
}

/// A flag that the one part that is asked for does not read is a mistake.
void refuse_unread(const CLI::App& app, const std::optional<std::string>& only) {
  if (!only) return;
  const auto refuse = [&](const char* flag, const char* read_by) {
    if (*only == read_by || app.get_option(flag)->count() == 0) return;
    throw Error(fmt::format("{} has no meaning with --only {}", flag, *only),
                fmt::format("leave it out, or use --only {}", read_by), ExitCode::wrong_usage);
  };
  refuse("--data", "forward");
  for (const char* flag :
       {"--sampler", "--steps", "--spacing", "--rho", "--sigma-min", "--sigma-max", "--eta", "--variance", "--churn",
        "--churn-min", "--churn-max", "--churn-noise", "--guidance", "--clip", "--percentile"}) {
    refuse(flag, "reverse");
  }
}

}  // namespace

Action add_visualize(CLI::App& app) {
  auto flags = std::make_shared<VisualizeFlags>();
  VisualizeOptions& o = flags->options;
  add_path(app, "--checkpoint", flags->checkpoint,
           "A run's folder or a checkpoint file, which say all about the model, or what difuse convert takes");
  add_path(app, "--out", flags->out, "Folder for forward, reverse and samplers, as PNG and animated WebP");
  add_path(app, "--data", flags->data, "Images to show in ever more noise, as difuse train takes them");
  add_path(app, "--data-cache", flags->data_cache, "Where decoded folders are kept [the user's cache, difuse/images]");
  add_choice(app, "--only", flags->only, {"forward", "reverse", "samplers"}, "One of the three", "all");
  add_seed(app, "--seed", flags->seed, "Seed; image i depends on the seed and i alone", "0");
  add_seeds(app, flags->seeds, "0-7");
  add_text(app, "--class", o.classes, "NAME|N[,...]", "Classes that the images take in turn", "all in turn");
  add_path(app, "--low-res", flags->low_res, "Images to enlarge, as difuse sample takes them");
  add_text(app, "--weights", o.weights, "ema|raw|ema_1...", "Averaged weights, or those of the last step",
           "ema where there is one");
  add_choice(app, "--model", o.foreign.model, preset_names(), "What foreign weights are of, where they do not say it",
             "the preset of these shapes");
  add_path(app, "--config", flags->config, "The same as a TOML file");
  flags->sampler.add(app);
  app.get_option("--sampler")
      ->description("Sampler of the reverse process, as its flags below are [ddpm; heun of edm]");
  add_device(app, o.device);
  add_dtype(app, o.precision);
  add_threads(app, flags->threads);
  return [flags, &app](const CommandContext& context) {
    refuse_unread(app, flags->only);
    return run_visualize(*flags, context);
  };
}

}  // namespace difuse::models
