// Drawing images from a trained model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/options.h"
#include "models/diffusion/sampler_config.h"
#include "models/run/backend.h"
#include "models/weights/trained_model.h"

namespace difuse::models {

/// Columns of a grid of `count` images: nearly square, wider than high.
int grid_columns(int64_t count);

/// The sampler as flags describe it. What is not set is default_sampler()'s for the checkpoint's process.
struct SamplerChoice {
  std::optional<SamplerKind> kind;
  std::optional<int64_t> steps;
  std::optional<Spacing> spacing;
  std::optional<Clipping> clipping;
  std::optional<double> percentile, rho, sigma_min, sigma_max, eta, guidance;
  std::optional<double> churn, churn_min, churn_max, churn_noise;
  std::optional<bool> large_variance;
  std::optional<int64_t> batch;  ///< Images at a time.
};

/// Throws Error (wrong usage) in the words of the flags.
SamplerConfig settle_sampler(const SamplerChoice& choice, const TrainedModel& checkpoint);

/// Error (wrong usage) for a model whose images are no pictures: of other than 1, 3 or 4 channels.
void require_pictures(const TrainedModel& checkpoint);

/// One set of a model's parameters: "ema", "ema_1", ... or "raw". Error listing those there are. Prints what was left
/// out where the user allowed that.
std::vector<float> read_weights(const TrainedModel& checkpoint, const std::string& weights,
                                const ParameterLayout& layout);

/// The classes that images take in turn: those named, separated by commas, or all of the model's.
std::vector<int32_t> settle_classes(const std::optional<std::string>& given, const TrainedModel& checkpoint);

/// What images enlarge, as DrawRequest has it; empty for a model that enlarges none. Error (wrong usage) where it is
/// missing, or given for such a model.
std::vector<uint8_t> settle_low_res(const std::optional<std::filesystem::path>& given, const TrainedModel& checkpoint,
                                    int threads, const ir::Options& environment);

struct SampleOptions {
  std::filesystem::path checkpoint;  ///< What TrainedModel::open() takes.
  WeightsOptions foreign;            ///< What weights of another program do not say.
  std::filesystem::path out;         ///< The PNG to write.
  std::optional<int64_t> count;      ///< Images: 16, or as many as are enlarged.
  int64_t first_index = 0;           ///< Number of the first image.
  std::vector<int32_t> images;       ///< Their numbers, in place of these two; empty: not given.
  /// Classes by name or number, separated by commas, that the images take in turn; all of the model's where not given.
  std::optional<std::string> classes;
  std::optional<std::filesystem::path> low_res;  ///< What to enlarge, as runtime::load_images() takes it.
  uint64_t seed = 0;
  SamplerChoice sampler;
  bool print_schedule = false;                 ///< Print the sampler's rows; draw and write nothing.
  std::optional<int64_t> columns;              ///< Of the grid.
  std::optional<std::string> weights;          ///< "ema", "ema_1", ... or "raw"; the file's first average, if any.
  DeviceChoice device;                         ///< Where to compute.
  std::optional<passes::Precision> precision;  ///< bf16 on a GPU, f32 on the CPU.
  passes::Prologues prologues = passes::Prologues::automatic;
  int threads = 1;  ///< Of the CPU.
};

/// Says that images take the pixels of `low_res` in turn, where there are more of them.
void say_turns(const UNetConfig& unet, std::span<const uint8_t> low_res, std::span<const int32_t> images);

/// Writes a grid of images; its path is the last line of standard output.
void sample(const SampleOptions& options, const ir::Options& environment);

}  // namespace difuse::models
