// The training loop: data and a model in; checkpoints, sample grids and metrics in a folder out.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ir/options.h"
#include "models/diffusion/diffusion_config.h"
#include "models/optimizer.h"
#include "models/run/backend.h"
#include "runtime/data/load.h"

namespace difuse::models {

/// What the command line says. What is not set comes from the checkpoint when resuming, from the defaults otherwise.
struct TrainOptions {
  std::filesystem::path data;  ///< What runtime::load_images() takes.
  std::filesystem::path out;
  /// Go on from this checkpoint file or run folder; empty: from the one in `out`.
  std::optional<std::filesystem::path> resume;
  /// Begin with the weights of this file, as TrainedModel::open() takes it, and with its model unless `model` or
  /// `config` say the same in full.
  std::optional<std::filesystem::path> init;
  bool allow_partial = false;  ///< `init` may lack tensors, or have others.

  // These decide the numbers: one that contradicts the checkpoint is an Error, but for lr, warmup, weight_decay and
  // clip_norm, which a resumed run may change. The defaults are the preset's, which the
  // configuration file changes first.
  std::optional<std::string> model;             ///< The preset.
  std::optional<std::filesystem::path> config;  ///< A TOML file, as toml_file.h describes it.
  std::optional<runtime::ImageSize> image_size;
  std::optional<int64_t> channels;    ///< Of the images.
  std::optional<int64_t> classes;     ///< Of the model; by default those of `class_from_folder`, if any.
  std::optional<int64_t> batch;       ///< Images a step.
  std::optional<int64_t> microbatch;  ///< Images at a time; all.
  std::optional<double> lr;           ///< Learning rate of AdamW.
  std::optional<LearningRateSchedule> lr_schedule;
  std::optional<int64_t> warmup;           ///< Steps over which the learning rate rises from 0.
  std::optional<double> weight_decay;      ///< Of AdamW.
  std::optional<double> clip_norm;         ///< Largest global norm of the gradient; 0: any.
  std::optional<std::vector<double>> ema;  ///< Decays of the moving averages of the parameters.
  std::optional<uint64_t> seed;            ///< Of everything random; 0.
  std::optional<NoiseSchedule> schedule;   ///< Of the noise.
  std::optional<int64_t> timesteps;        ///< Of the noise schedule.
  std::optional<Process> process;
  std::optional<Prediction> prediction;
  std::optional<bool> rescale_timesteps, rescale_learned_sigmas;
  std::optional<double> min_snr, sigma_data, p_mean, p_std, label_dropout;  ///< As in DiffusionConfig.
  std::optional<bool> flip;                                                 ///< Mirror images at random; not.
  std::optional<runtime::Crop> crop;                                        ///< center
  std::optional<bool> class_from_folder;  ///< Labels from the folders of the first level; not.

  // What becomes of the data, without deciding what the run is.
  std::optional<runtime::OnBadImage> on_bad_image;  ///< The checkpoint's; error.
  std::optional<std::filesystem::path> data_cache;  ///< For decoded folders; below the cache of the environment.
  bool dry_run = false;                             ///< Check, compile and describe; train and write nothing.

  // These decide when it stops and what it writes.
  std::optional<int64_t> steps;   ///< Steps in all, those before resuming included.
  std::optional<double> minutes;  ///< Of wall clock since `started`.
  int64_t save_every = 500;       ///< Steps; 0: only at the end.
  int64_t keep_last = 0;          ///< Numbered checkpoints to keep beside the latest.
  int64_t sample_every = 500;     ///< Steps; 0: never.
  int64_t log_every = 50;         ///< Steps between lines of the metrics and, without a terminal, of progress.
  DeviceChoice device;            ///< Where to compute.
  std::optional<passes::Precision> precision;  ///< bf16 on a GPU, f32 on the CPU.
  passes::Prologues prologues = passes::Prologues::automatic;
  int threads = 1;  ///< Of the CPU: what computes there, and what decodes images.
  std::chrono::steady_clock::time_point started;
};

/// Trains; prints what the data is and progress to standard output. Returns 0, or 130 / 143 / 129 after SIGINT /
/// SIGTERM / SIGHUP, in each case with the state saved. Everything that can be wrong with flags, folder, data and disk
/// is an Error before anything is compiled, and leaves nothing behind.
int train(const TrainOptions& options, const ir::Options& environment);

}  // namespace difuse::models
