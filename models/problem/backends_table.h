// One sampling job on everything that can run it here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "ir/options.h"
#include "models/run/backend.h"

namespace difuse::models {

struct BackendsJob {
  std::filesystem::path checkpoint;            ///< What TrainedModel::open() takes.
  std::optional<int64_t> images;               ///< 16, drawn as one batch.
  std::optional<int64_t> steps;                ///< Of the process's default sampler; 4, because the reference is slow.
  DeviceChoice device;                         ///< cpu leaves the GPU out.
  std::optional<passes::Precision> precision;  ///< Of the GPU, beside f32; bf16.
  int threads = 1;
  bool json = false;
};

/// Draws the same images by the fp64 reference, by the CPU's kernels and, where there is a GPU, by its own, unfused,
/// fused with estimated tiles, and fused with those that the environment's tuning finds (left out where it is off), and
/// prints a line for each: seconds, speed against the first, the largest difference of a pixel from the first, in
/// [-1, 1]. Compilation, tuning and one trajectory to warm up are not counted, but for the reference, which has
/// neither. A model that enlarges images gets made up ones. Throws Error as sample() does.
void compare_backends(const BackendsJob& job, const ir::Options& environment);

}  // namespace difuse::models
