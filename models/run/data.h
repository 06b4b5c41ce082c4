// The data of a run: what the flags say about images, and the report of what was found.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "ir/options.h"
#include "models/checkpoint.h"
#include "models/run/interrupt.h"
#include "models/train.h"
#include "runtime/data/load.h"

namespace difuse::models {

/// Where decoded folders are kept unless --data-cache says so: below DIFUSE_CACHE, else the user's cache; empty where
/// there is neither.
std::filesystem::path default_data_cache(const ir::Options& environment);

/// The images for the run, or, in a dry run, all but their pixels. Prints counts per kind, classes and what is done;
/// warnings go to standard error. IDX data that are not asked to change keep their size and channels. Throws
/// Interrupted on a signal, and what runtime::load_images() throws.
runtime::ImageSet load_data(const TrainOptions& options, const RunConfig& config, bool resumed,
                            const ir::Options& environment, const InterruptGuard& interrupt);

/// The images at `path` as those that a model enlarges: pixels [k, h, w, C] (low_res.h), shrunk or enlarged to that
/// size where they have another. Prints like load_data() and throws like it, naming --low-res.
std::vector<uint8_t> load_low_res(const std::filesystem::path& path, const UNetConfig& unet, int threads,
                                  const ir::Options& environment);
/// The same made of the first images of a model's own data, `count` or all.
std::vector<uint8_t> low_res_of(const runtime::ImageSet& images, const UNetConfig& unet, int64_t count);

/// Looks at data as `difuse inspect` does and prints what is there.
void describe_data(const std::filesystem::path& path);

}  // namespace difuse::models
