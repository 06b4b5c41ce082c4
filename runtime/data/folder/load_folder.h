// Folders of image files into sets: walked, decoded by threads, kept in a cache. What a single file becomes is decided
// in runtime/data/image.
#pragma once

#include <filesystem>

#include "runtime/data/image_set.h"
#include "runtime/data/load.h"

namespace difuse::runtime {

/// The part of load_images() for a folder of images; its errors and reports are described there.
ImageSet load_folder(const std::filesystem::path& folder, const LoadSettings& settings, const LoadReport& report);

}  // namespace difuse::runtime
