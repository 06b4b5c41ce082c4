// The image files of unet.cu (https://github.com/clu0/unet.cu, prepare_data.py):
//
//   256 little-endian i32: 20240620, the number of images, channels, height, width, zeros
//   f32 values from -1 to 1, image by image as [channels, height, width]
#pragma once

#include <filesystem>

#include "runtime/data/image_set.h"

namespace difuse::runtime {

/// Whether a file begins with the magic number.
bool is_unet_cu_data(const std::filesystem::path& path);

/// Errors, each with its own message: no image; a size or number of channels (1, 3 or 4) of no images; truncated, or
/// longer than its header says; a value outside -1 to 1.
ImageSet read_unet_cu_data(const std::filesystem::path& path);

}  // namespace difuse::runtime
