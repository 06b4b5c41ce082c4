#include "models/sample.h"

#include <fmt/format.h>

#include <limits>
#include <memory>

#include "ir/error.h"
#include "models/cli/commands.h"
#include "models/cli/flags.h"
#include "models/cli/names.h"
#include "models/cli/sampler_flags.h"

namespace difuse::models {
namespace {

struct SampleFlags {
  SampleOptions options;
  SamplerFlags sampler;
  std::string checkpoint, out, config, low_res;
  std::optional<std::string> seeds;
  std::optional<int64_t> count, first_index, threads;
  std::optional<uint64_t> seed;
  std::optional<double> tune_budget;
};

constexpr int64_t kMostImages = 1 << 20;

int run_sample(SampleFlags& flags, const CommandContext& context) {
  constexpr const char* kExample = "difuse sample --checkpoint runs/a --n 16 --out a.png";
  if (flags.checkpoint.empty()) missing_flag("sample", "--checkpoint", kExample);
  if (flags.out.empty() && !flags.options.print_schedule) missing_flag("sample", "--out", kExample);
  SampleOptions& options = flags.options;
  options.checkpoint = flags.checkpoint;
  options.out = flags.out;
  options.count = flags.count;
  options.first_index = flags.first_index.value_or(0);
  options.seed = flags.seed.value_or(0);
  options.sampler = flags.sampler.choice();
  if (flags.seeds) {
    if (flags.count || flags.first_index) {
      throw Error("--seeds says which images to draw, so --n and --first-index have no meaning with it",
                  "leave them out, or leave --seeds out", ExitCode::wrong_usage);
    }
    options.images = parse_seeds(*flags.seeds, kMostImages);
  }
  if (!flags.low_res.empty()) options.low_res = flags.low_res;
  if (!flags.config.empty()) options.foreign.config = flags.config;
  options.threads = resolve_threads(flags.threads);
  sample(options, with_tuning(context.options, flags.tune_budget));
  return 0;
}

}  // namespace

Action add_sample(CLI::App& app) {
  auto flags = std::make_shared<SampleFlags>();
  SampleOptions& o = flags->options;
  add_path(app, "--checkpoint", flags->checkpoint,
           "A run's folder or a checkpoint file, which say all about the model, or what difuse convert takes");
  add_path(app, "--out", flags->out, "The PNG to write");
  add_whole(app, "--n", flags->count, {1, kMostImages}, "Images to draw", "16; as many as --low-res has");
  add_seed(app, "--seed", flags->seed, "Seed; image i depends on the seed and i alone", "0");
  add_whole(app, "--first-index", flags->first_index, {0, std::numeric_limits<int32_t>::max() - kMostImages},
            "Number of the first image", "0");
  add_seeds(app, flags->seeds);
  add_text(app, "--class", o.classes, "NAME|N[,...]",
           "Classes that the images take in turn, by name, or by number where no name is the same", "all in turn");
  add_path(app, "--low-res", flags->low_res,
           "Images to enlarge, by a model that does: a folder, one image or an IDX file; image I enlarges number I, "
           "beyond the last from the first again; one of another shape is cut around its centre");
  flags->sampler.add(app);
  app.add_flag("--print-schedule", o.print_schedule, "Print the noise levels and coefficients; draw nothing");
  add_text(app, "--weights", o.weights, "ema|raw|ema_1...", "Averaged weights, or those of the last step",
           "ema where there is one");
  add_whole(app, "--columns", o.columns, {1, kMostImages}, "Columns of the grid", "nearly square");
  add_choice(app, "--model", o.foreign.model, preset_names(), "What foreign weights are of, where they do not say it",
             "the preset of these shapes");
  add_path(app, "--config", flags->config, "The same as a TOML file");
  app.add_flag("--allow-partial", o.foreign.allow_partial,
               "Take the tensors of foreign weights that fit; the others start as in training");
  add_tune_budget(app, flags->tune_budget);
  add_device(app, o.device);
  add_dtype(app, o.precision);
  add_prologue(app, o.prologues);
  add_threads(app, flags->threads);
  return [flags](const CommandContext& context) { return run_sample(*flags, context); };
}

}  // namespace difuse::models
