// Pictures of what a diffusion model does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ir/options.h"
#include "models/run/backend.h"
#include "models/sample.h"

namespace difuse::models {

struct VisualizeOptions {
  enum class Part : uint8_t { forward, reverse, samplers };

  std::filesystem::path checkpoint;              ///< What TrainedModel::open() takes.
  WeightsOptions foreign;                        ///< As in SampleOptions.
  std::filesystem::path out;                     ///< The folder to write into.
  std::filesystem::path data;                    ///< What to corrupt; empty: the forward process is left out.
  std::filesystem::path data_cache;              ///< For decoded folders; empty: below the cache of the environment.
  std::optional<Part> only;                      ///< All that can be made.
  std::vector<int32_t> images;                   ///< Numbers of the images to draw.
  std::optional<std::filesystem::path> low_res;  ///< What they enlarge, for a model that does.
  std::optional<std::string> classes;
  uint64_t seed = 0;
  SamplerChoice sampler;               ///< Of the reverse process.
  std::optional<std::string> weights;  ///< As in SampleOptions.
  DeviceChoice device;
  std::optional<passes::Precision> precision;
  int threads = 1;
};

/// Writes into the folder and prints each file's path:
///   forward.png, forward.webp    images of the data in ever more noise, a row each
///   reverse.png, reverse.webp    images being drawn, a row each
///   samplers.png                 the same images by several samplers in 5, 10, 20 and 50 steps, a row per sampler and
///                                number of steps
/// Noisy images x_0 + sigma z are shown over sqrt(1 + sigma^2), in any process. Throws Error as sample() does, and
/// Interrupted; the folder is there afterwards only if it was before or holds something.
void visualize(const VisualizeOptions& options, const ir::Options& environment);

}  // namespace difuse::models
