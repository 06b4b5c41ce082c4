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
  std::string data, out, resume, init, config, data_cache;
  std::optional<std::string> schedule, process, prediction, lr_schedule, crop, on_bad_image, image_size, channels;
  std::optional<double> tune_budget;
  std::optional<int64_t> save_every, keep_last, sample_every, log_every, threads;
  CLI::Option* resume_flag = nullptr;
  bool flip = false, class_from_folder = false, rescale_timesteps = false, rescale_learned_sigmas = false;
  CLI::Option* flip_flag = nullptr;
  CLI::Option* class_flag = nullptr;
  CLI::Option* rescale_flag = nullptr;
  CLI::Option* rescale_sigmas_flag = nullptr;
};

int run_train(TrainFlags& flags, const CommandContext& context) {
  constexpr const char* kExample = "difuse train --data images --model tiny --steps 1000 --out runs/a";
  TrainOptions& options = flags.options;
  if (flags.data.empty()) missing_flag("train", "--data", kExample);
  const bool needs_out = !options.dry_run || (flags.resume_flag->count() > 0 && flags.resume.empty());
  if (flags.out.empty() && needs_out) missing_flag("train", "--out", kExample);
  if (!options.model && flags.config.empty() && flags.init.empty() && flags.resume_flag->count() == 0) {
    missing_flag("train", fmt::format("--model ({}) or --config", fmt::join(preset_names(), ", ")), kExample);
  }
  options.data = flags.data;
  if (!flags.config.empty()) options.config = flags.config;
  if (!flags.init.empty()) {
    if (flags.resume_flag->count() > 0) {
      throw Error("--init begins a run and --resume goes on with one", "leave one of them out", ExitCode::wrong_usage);
    }
    options.init = flags.init;
  } else if (options.allow_partial) {
    throw Error("--allow-partial has no meaning without --init", "leave it out", ExitCode::wrong_usage);
  }
  if (!flags.data_cache.empty()) options.data_cache = flags.data_cache;
  if (flags.image_size) options.image_size = runtime::parse_image_size("--image-size", *flags.image_size);
  if (flags.channels) options.channels = parse_whole("--channels", *flags.channels, {1, 4});
  if (flags.crop) options.crop = runtime::parse_crop(*flags.crop);
  if (flags.on_bad_image) {
    options.on_bad_image = *flags.on_bad_image == "skip" ? runtime::OnBadImage::skip : runtime::OnBadImage::error;
  }
  if (flags.class_flag->count() > 0) options.class_from_folder = flags.class_from_folder;
  options.out = flags.out;
  if (flags.resume_flag->count() > 0) options.resume = flags.resume;
  if (flags.flip_flag->count() > 0) options.flip = flags.flip;
  options.save_every = flags.save_every.value_or(options.save_every);
  options.keep_last = flags.keep_last.value_or(options.keep_last);
  options.sample_every = flags.sample_every.value_or(options.sample_every);
  options.log_every = flags.log_every.value_or(options.log_every);
  if (flags.lr_schedule) options.lr_schedule = parse_learning_rate_schedule(*flags.lr_schedule);
  if (flags.schedule) options.schedule = parse_noise_schedule(*flags.schedule);
  if (flags.process) options.process = parse_process(*flags.process);
  if (flags.prediction) options.prediction = parse_prediction(*flags.prediction);
  if (flags.rescale_flag->count() > 0) options.rescale_timesteps = flags.rescale_timesteps;
  if (flags.rescale_sigmas_flag->count() > 0) options.rescale_learned_sigmas = flags.rescale_learned_sigmas;
  options.threads = resolve_threads(flags.threads);
  options.started = context.started;
  return train(options, with_tuning(context.options, flags.tune_budget));
}

}  // namespace

Action add_train(CLI::App& app) {
  auto flags = std::make_shared<TrainFlags>();
  TrainOptions& o = flags->options;
  add_path(app, "--data", flags->data,
           "Images: a folder of PNG, JPEG and WebP files at any depth, or an IDX file (MNIST), plain or gzip");
  add_path(app, "--out", flags->out, "Folder of the run: checkpoint, samples, metrics");
  add_choice(app, "--model", o.model, preset_names(), "Preset; difuse inspect NAME describes it");
  add_path(
      app, "--config", flags->config,
      "TOML file of the model, its diffusion and training; flags win over it; difuse inspect PRESET --toml prints one");
  add_whole(app, "--steps", o.steps, kCount, "Stop after so many steps in all; resumed ones count");
  add_real(app, "--minutes", o.minutes, {.least = 0, .most = 1e7, .open = true},
           "Stop after so much time since the start and save");
  flags->resume_flag = app.add_option_function<std::string>(
                              "--resume", [flags](const std::string& path) { flags->resume = path; },
                              "Go on from a checkpoint or run folder; without a value, from --out")
                           ->type_name("[PATH]")
                           ->expected(0, 1)
                           ->take_last();
  add_path(app, "--init", flags->init,
           "Begin with these weights: a checkpoint, or what difuse convert takes; the model is theirs");
  app.add_flag("--allow-partial", o.allow_partial, "--init may lack tensors of the model, or have others");
  app.add_flag("--dry-run", o.dry_run, "Check, compile and say what the run would take; write nothing");

  add_text(app, "--image-size", flags->image_size, "S|HxW", "Size of the images and of the model", kPreset);
  add_choice(app, "--channels", flags->channels, {"1", "3", "4"}, "Grey, colour, or colour and alpha", kPreset);
  add_choice(app, "--crop", flags->crop, {"center", "none"},
             "Images of another shape: cut around the centre, or squeezed", "center");
  flags->flip_flag = app.add_flag("--flip", flags->flip, "Mirror images left to right at random");
  add_choice(app, "--on-bad-image", flags->on_bad_image, {"error", "skip"}, "What to do about files that are damaged",
             "error");
  flags->class_flag =
      app.add_flag("--class-from-folder", flags->class_from_folder, "Classes: the folders on the first level");
  add_whole(app, "--classes", o.classes, {0, 1 << 24}, "Classes of the model; 0: not conditional",
            "the preset's, or those of --class-from-folder");
  add_path(app, "--data-cache", flags->data_cache, "Where decoded folders are kept [the user's cache, difuse/images]");

  add_whole(app, "--batch", o.batch, {1, 1 << 20}, "Images a step", kPreset);
  add_whole(app, "--microbatch", o.microbatch, {1, 1 << 20},
            "Images at a time, gradients averaged over the batch; divides --batch", "all");
  add_real(app, "--lr", o.lr, {.least = 0, .open = true}, "Learning rate of AdamW", kPreset);
  add_choice(app, "--lr-schedule", flags->lr_schedule, {"constant", "cosine"},
             "Learning rate after the warm-up; cosine falls to 0 at --steps", kPreset);
  add_whole(app, "--warmup", o.warmup, kMaybe, "Steps over which the learning rate rises from 0", kPreset);
  add_real(app, "--weight-decay", o.weight_decay, {0, 1e3}, "Weight decay of AdamW", kPreset);
  add_real(app, "--clip-norm", o.clip_norm, {0}, "Largest global norm of the gradient; 0: no limit", kPreset);
  add_reals(app, "--ema", o.ema, {.least = 0, .most = 1, .open_above = true},
            "Decay of the moving average of the weights; several make several averages", kPreset);
  add_choice(app, "--process", flags->process, {"ddpm", "edm"},
             "Timesteps of a noise schedule, or noise levels as in EDM", kPreset);
  add_choice(
      app, "--schedule", flags->schedule, {"linear", "scaled_linear", "cosine"},
      "Noise schedule; of the first two beta goes from 1e-4 to 0.02, or as beta_start and beta_end in [diffusion] "
      "of --config say",
      kPreset);
  add_whole(
      app, "--timesteps", o.timesteps, {2, 100000},
      "Timesteps of the noise schedule, of the linear ones above 1000 times beta_end: betas are as of 1000 and are "
      "multiplied by 1000 / N; edm: the most steps of a sampler",
      kPreset);
  add_choice(app, "--prediction", flags->prediction, {"eps", "x0", "v"}, "ddpm: what the network answers", kPreset);
  flags->rescale_flag = app.add_flag("--rescale-timesteps", flags->rescale_timesteps,
                                     "ddpm: the network sees t of 1000, whatever --timesteps");
  flags->rescale_sigmas_flag =
      app.add_flag("--rescale-learned-sigmas", flags->rescale_learned_sigmas,
                   "A learned variance's bound counts --timesteps / 1000 times, as in improved DDPM's hybrid loss");
  add_real(app, "--min-snr", o.min_snr, {0}, "ddpm: bound of the loss weight, such as 5; 0: weight 1", kPreset);
  add_real(app, "--sigma-data", o.sigma_data, {.least = 0, .most = 1e3, .open = true},
           "edm: standard deviation of the images", "0.5");
  add_real(app, "--p-mean", o.p_mean, {-10, 10}, "edm: mean of the noise levels' logarithm", "-1.2");
  add_real(app, "--p-std", o.p_std, {.least = 0, .most = 5, .open = true}, "edm: its standard deviation", "1.2");
  add_real(
      app, "--label-dropout", o.label_dropout, {.least = 0, .most = 1, .open_above = true},
      "Share of the images that are shown without label, for guidance; the model's last class is then no label, so "
      "--classes is one more than the data has",
      "0");
  add_seed(app, "--seed", o.seed, "Seed of everything random", "0");

  add_whole(app, "--save-every", flags->save_every, kMaybe, "Steps between checkpoints; 0: only at the end", "500");
  add_whole(app, "--keep-last", flags->keep_last, {0, 1 << 20}, "Numbered checkpoints to keep beside the latest", "0");
  add_whole(app, "--sample-every", flags->sample_every, kMaybe, "Steps between sample grids; 0: never", "500");
  add_whole(app, "--log-every", flags->log_every, kCount, "Steps between lines of the metrics", "50");
  add_tune_budget(app, flags->tune_budget);
  add_device(app, o.device);
  add_dtype(app, o.precision);
  add_prologue(app, o.prologues);
  add_threads(app, flags->threads);
  return [flags](const CommandContext& context) { return run_train(*flags, context); };
}

}  // namespace difuse::models
