// Whatever the user calls data into an ImageSet: an IDX file or its folder, a folder of images, one image, a file of
// unet.cu.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/data/image/decode.h"
#include "runtime/data/image/fit.h"
#include "runtime/data/image_set.h"

namespace difuse::runtime {

/// What to do about image files that cannot be used.
enum class OnBadImage : std::uint8_t {
  error,  ///< Name them (20 at most) and stop.
  skip,   ///< Name them, count them, go on without.
};

struct LoadSettings {
  ImageSize size;    ///< 0 x 0: the size that the images have, which must be one.
  int channels = 0;  ///< 1, 3 or 4; 0: 1 for IDX, 3 for image files.
  Crop crop = Crop::center;
  OnBadImage on_bad_image = OnBadImage::error;
  bool class_from_folder = false;      ///< Labels from the folders of the first level, numbered in byte order.
  bool idx_keeps_size = false;         ///< IDX data stay in their own size.
  bool idx_keeps_channels = false;     ///< IDX data stay grey.
  bool look_only = false;              ///< Decode and report, keep nothing: the set has no pixels, no cache is written.
  int threads = 0;                     ///< That decode; 0: one for each core.
  std::filesystem::path cache_folder;  ///< Where decoded folders are kept; empty: nowhere.
  bool can_change = true;              ///< Whether there are flags for size, bad images and cache: remedies name them.
  DecodeLimits limits;
};

/// Where load_images() says what it finds. Each may be empty. What they throw ends the loading, and nothing
/// half-written stays: the way to stop a long scan at a signal.
struct LoadReport {
  std::function<void(std::string_view line)> say;   ///< The tables: counts per kind, classes, where the cache is.
  std::function<void(std::string_view line)> warn;  ///< Skipped files, a cache that cannot be kept.
  std::function<void(std::int64_t done, std::int64_t total)> progress;  ///< After each file, in order.
};

/// Reads the data at `path`:
///
/// - an IDX file, or a folder that holds one on its first level: read_idx(), then brought to the size and channels;
/// - any other folder: scan_folder(), every file decoded, brought to the channels and the size, in the order of names;
/// - an image file of unet.cu: read_unet_cu_data(), treated like IDX;
/// - a PNG, JPEG or WebP file: a set of one image.
///
/// Folders are decoded once: the result is kept in the cache folder, keyed by the settings and by every file's path,
/// size and time, and mapped from there the next time. A cache that is damaged or of other contents is made again, with
/// one line; where none can be written the images stay in memory, with one warning.
///
/// With `look_only` several sizes are no error where none was asked for; the set then has the first image's.
///
/// Errors: those of read_idx(); the path is missing; the folder is empty; it has no usable image (three messages);
/// files are bad and `on_bad_image` is `error`; images of several sizes and no size given; --class-from-folder where
/// images lie in no class folder, a class has no usable image, or the data is no folder of images.
ImageSet load_images(const std::filesystem::path& path, const LoadSettings& settings, const LoadReport& report);

}  // namespace difuse::runtime
