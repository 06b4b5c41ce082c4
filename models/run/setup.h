// What must be right before a run begins: flags against the checkpoint, data against the model.
#pragma once

#include "models/checkpoint.h"
#include "models/train.h"
#include "runtime/data/image_set.h"

namespace difuse::models {

/// The configuration of the run: the checkpoint's when `resumed` is given, the preset's otherwise, changed by the
/// flags. `images` of the result is not set. Error for a flag that contradicts the checkpoint.
RunConfig settle_config(const TrainOptions& options, const Checkpoint* resumed);

/// Error when `out` holds another run than the one to go on with: `resumed` is that checkpoint's path, or null.
void require_own_folder(const std::filesystem::path& out, const std::filesystem::path* resumed);

/// Errors, with the arithmetic: images of another size or number of channels than the model's; fewer than a batch; not
/// as many as the checkpoint was trained on.
void check_data(const runtime::ImageSet& images, const std::filesystem::path& data, const RunConfig& config,
                const Checkpoint* resumed);

}  // namespace difuse::models
