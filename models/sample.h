// Drawing images from a trained model.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/options.h"
#include "models/diffusion/samplers.h"
#include "models/run/backend.h"
#include "models/unet_config.h"
#include "runtime/png.h"

namespace difuse::runtime {
class Executor;
}

namespace difuse::models {

/// What to draw: images first .. first + count - 1 of a seed.
struct DrawRequest {
  std::span<const float> parameters;  ///< The flat vector of the model's layout.
  uint64_t seed = 0;
  int64_t first = 0;
  int64_t count = 0;
  std::vector<int32_t> classes;  ///< Image i has class classes[i % size]. Empty if and only if the model has none.
};

/// A compiled sampler. Image i depends on the parameters, the seed, i and its class alone: not on how many are drawn,
/// in what batches, or by how many threads (but for the device and the precision).
class Sampler {
 public:
  /// Compiles; throws Error (wrong usage) when a configuration does not pass its check.
  Sampler(const UNetConfig& unet, const DiffusionConfig& diffusion, const SamplerConfig& config,
          const ir::Options& environment, const Backend& backend);
  ~Sampler();

  /// Called after every step with the steps done (on a GPU: begun) and in all; false stops.
  using Continue = std::function<bool(int64_t done, int64_t of)>;

  /// The images as 8 bits a channel; empty when `go_on` stopped it. The last batch is filled up with the images that
  /// would follow, so that no other batch size has to be compiled.
  std::vector<runtime::Image> draw(const DrawRequest& request, const Continue& go_on = {});

 private:
  runtime::Image image_of(std::span<const float> pixels) const;

  SamplerConfig config_;
  int height_, width_, channels_;
  std::unique_ptr<runtime::Executor> executor_;
};

/// The two words of a seed, low first, as the graphs take it.
std::array<uint32_t, 2> seed_words(uint64_t seed);

/// All classes of a model in order; empty when it has none.
std::vector<int32_t> every_class(const UNetConfig& unet);

/// Columns of a grid of `count` images: nearly square, wider than high.
int grid_columns(int64_t count);

struct SampleOptions {
  std::filesystem::path checkpoint;  ///< A file, or a run's folder.
  std::filesystem::path out;         ///< The PNG to write.
  int64_t count = 16;                ///< Images.
  int64_t first_index = 0;           ///< Number of the first image.
  /// Classes by name or number, separated by commas, that the images take in turn; all of the model's where not given.
  std::optional<std::string> classes;
  uint64_t seed = 0;
  SamplerKind sampler = SamplerConfig{}.kind;
  std::optional<int64_t> steps;                ///< 100, or all timesteps where there are fewer.
  std::optional<double> eta;                   ///< Of ddim; 0.
  std::optional<int64_t> batch;                ///< Images at a time.
  std::optional<int64_t> columns;              ///< Of the grid.
  std::string weights = "ema";                 ///< "ema", "ema_1", ... or "raw".
  DeviceChoice device;                         ///< Where to compute.
  std::optional<passes::Precision> precision;  ///< bf16 on a GPU, f32 on the CPU.
  int threads = 1;                             ///< Of the CPU.
};

/// Writes a grid of images; its path is the last line of standard output.
void sample(const SampleOptions& options, const ir::Options& environment);

}  // namespace difuse::models
