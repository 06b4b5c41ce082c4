#include "models/train.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "ir/error.h"
#include "models/cli/commands.h"
#include "models/cli/flags.h"
#include "models/cli/names.h"

namespace difuse::models {
namespace {

constexpr WholeRange kCount{1, int64_t{1} << 31};
constexpr const char* kPreset = "the preset's";
constexpr WholeRange kMaybe{0, int64_t{1} << 31};

struct TrainFlags {
  TrainOptions options;
  std::string data, out, resume;
  std::optional<std::string> device, dtype, schedule;
  std::optional<int64_t> save_every, keep_last, sample_every, log_every, threads;
  CLI::Option* resume_flag = nullptr;
  CLI::Option* flip_flag = nullptr;
};

int run_train(TrainFlags& flags, const CommandContext& context) {
  constexpr const char* kExample = "difuse train --data images --model tiny --steps 1000 --out runs/a";
  TrainOptions& options = flags.options;
  if (flags.data.empty()) missing_flag("train", "--data", kExample);
  if (flags.out.empty()) missing_flag("train", "--out", kExample);
  if (!options.model && flags.resume_flag->count() == 0) {
    missing_flag("train", fmt::format("--model ({})", fmt::join(preset_names(), ", ")), kExample);
  }
  options.data = flags.data;
  options.out = flags.out;
  if (flags.resume_flag->count() > 0) options.resume = flags.resume;
  if (flags.flip_flag->count() > 0) options.flip = true;
  options.save_every = flags.save_every.value_or(options.save_every);
  options.keep_last = flags.keep_last.value_or(options.keep_last);
  options.sample_every = flags.sample_every.value_or(options.sample_every);
  options.log_every = flags.log_every.value_or(options.log_every);
  if (flags.schedule) options.schedule = parse_noise_schedule(*flags.schedule);
  options.threads = resolve_threads(flags.threads);
  options.started = context.started;
  require_cpu_f32(flags.device, flags.dtype);
  return train(options, context.options);
}

}  // namespace

Action add_train(CLI::App& app) {
  auto flags = std::make_shared<TrainFlags>();
  TrainOptions& o = flags->options;
  add_path(app, "--data", flags->data,
           "Images: an IDX file (MNIST, Fashion-MNIST), plain or gzip, or a folder with one");
  add_path(app, "--out", flags->out, "Folder of the run: checkpoint, samples, metrics");
  add_choice(app, "--model", o.model, preset_names(), "Preset; difuse inspect NAME describes it");
  add_whole(app, "--steps", o.steps, kCount, "Stop after so many steps in all; resumed ones count");
  add_real(app, "--minutes", o.minutes, {.least = 0, .most = 1e7, .open = true},
           "Stop after so much time since the start and save");
  flags->resume_flag = app.add_option_function<std::string>(
                              "--resume", [flags](const std::string& path) { flags->resume = path; },
                              "Go on from a checkpoint or run folder; without a value, from --out")
                           ->type_name("[PATH]")
                           ->expected(0, 1)
                           ->take_last();

  add_whole(app, "--batch", o.batch, {1, 1 << 20}, "Images a step", kPreset);
  add_real(app, "--lr", o.lr, {.least = 0, .open = true}, "Learning rate of AdamW", kPreset);
  add_whole(app, "--warmup", o.warmup, kMaybe, "Steps over which the learning rate rises from 0", kPreset);
  add_real(app, "--weight-decay", o.weight_decay, {0, 1e3}, "Weight decay of AdamW", kPreset);
  add_real(app, "--clip-norm", o.clip_norm, {0}, "Largest global norm of the gradient; 0: no limit", kPreset);
  add_reals(app, "--ema", o.ema, {.least = 0, .most = 1, .open_above = true},
            "Decay of the moving average of the weights; several make several averages", kPreset);
  add_choice(app, "--schedule", flags->schedule, {"linear", "cosine"}, "Noise schedule", kPreset);
  add_whole(app, "--timesteps", o.timesteps, {2, 1 << 20}, "Timesteps of the noise schedule", kPreset);
  add_seed(app, "--seed", o.seed, "Seed of everything random", "0");
  flags->flip_flag = app.add_flag("--flip")->description("Mirror images left to right at random");

  add_whole(app, "--save-every", flags->save_every, kMaybe, "Steps between checkpoints; 0: only at the end", "500");
  add_whole(app, "--keep-last", flags->keep_last, {0, 1 << 20}, "Numbered checkpoints to keep beside the latest", "0");
  add_whole(app, "--sample-every", flags->sample_every, kMaybe, "Steps between sample grids; 0: never", "500");
  add_whole(app, "--log-every", flags->log_every, kCount, "Steps between lines of the metrics", "50");
  add_choice(app, "--device", flags->device, {"cpu", "cuda"}, "Where to compute", "cpu");
  add_choice(app, "--dtype", flags->dtype, {"f32", "bf16"}, "Storage of activations", "f32");
  add_threads(app, flags->threads);
  return [flags](const CommandContext& context) { return run_train(*flags, context); };
}

}  // namespace difuse::models
