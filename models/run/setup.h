// What must be right before a run begins: flags and files against the checkpoint, data against the model.
#pragma once

#include "models/checkpoint.h"
#include "models/train.h"
#include "models/weights/trained_model.h"
#include "runtime/data/image_set.h"

namespace difuse::models {

/// The configuration of the run: the checkpoint's when `resumed` is given, that of the weights to begin with when
/// `initial` is, the preset's otherwise, changed by the configuration file and then by the flags. What only the data
/// can say is not set yet (adopt_data). Errors (wrong usage): a flag or a line of the file that contradicts the
/// checkpoint; whatever the configuration's checks refuse.
RunConfig settle_config(const TrainOptions& options, const Checkpoint* resumed, const TrainedModel* initial = nullptr);

/// The configuration that a file describes.
RunConfig config_of_file(const std::filesystem::path& path);

/// Error when `out` holds another run than the one to go on with: `resumed` is that checkpoint's path, or null.
void require_own_folder(const std::filesystem::path& out, const std::filesystem::path* resumed);

/// Completes the configuration of a new run from its data: the number of images, the names of the classes, and the
/// number of classes where the folders give it. Errors, with the arithmetic: images of another size or number of
/// channels than the model's; fewer than a batch; labels that the model has no class for; names that no file can hold;
/// other images or classes than those that the checkpoint was trained on.
void adopt_data(RunConfig& config, const runtime::ImageSet& images, const TrainOptions& options,
                const Checkpoint* resumed);

}  // namespace difuse::models
