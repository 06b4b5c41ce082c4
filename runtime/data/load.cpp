#include "runtime/data/load.h"

#include <fmt/format.h>

#include <cstddef>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "ir/error.h"
#include "runtime/data/folder/fitted_file.h"
#include "runtime/data/folder/load_folder.h"
#include "runtime/data/folder/scan.h"
#include "runtime/data/idx.h"
#include "runtime/data/unet_cu_data.h"

namespace difuse::runtime {

namespace fs = std::filesystem;

namespace {

void check(const LoadSettings& settings) {
  if (settings.channels != 0 && settings.channels != 1 && settings.channels != 3 && settings.channels != 4) {
    throw Error(fmt::format("--channels {} is not a number of channels of images", settings.channels),
                "give --channels 1, 3 or 4", ExitCode::wrong_usage);
  }
  if (settings.size.height < 0 || settings.size.width < 0 ||
      (settings.size.height == 0) != (settings.size.width == 0)) {
    throw Error(fmt::format("--image-size {} is not a size of images", describe(settings.size)),
                "give a height and a width of 1 or more", ExitCode::wrong_usage);
  }
}

/// Data of one size (IDX, unet.cu) brought to the size and channels that were asked for.
ImageSet fit_packed(ImageSet set, const LoadSettings& settings) {
  const bool resized = settings.size.height > 0 && !settings.idx_keeps_size;
  const ImageSize size = resized ? settings.size : ImageSize{set.height, set.width};
  const int channels = settings.channels > 0 && !settings.idx_keeps_channels ? settings.channels : set.channels;
  if (size == ImageSize{set.height, set.width} && channels == set.channels) return set;
  if (!settings.look_only) {
    set.own(fit_pixels(set, set.count, size, channels, settings.crop,
                       settings.can_change ? "give another --image-size" : "give images of another shape"));
  }
  set.summary += fmt::format("; brought to {}x{}x{}", size.height, size.width, channels);
  if (const ImageSize stored{set.height, set.width}; size != stored) {
    set.summary += fmt::format(" ({})", describe_fit(stored, size, settings.crop));
  }
  set.height = size.height;
  set.width = size.width;
  set.channels = channels;
  return set;
}

ImageSet load_single(const fs::path& path, LoadSettings settings) {
  if (settings.channels == 0) settings.channels = 3;
  const int channels = settings.channels;
  FittedFile file = read_fitted(path, settings);
  if (file.fault) {
    throw Error(fmt::format("'{}' {}", path.string(), *file.fault), "give an undamaged PNG, JPEG or WebP file");
  }
  ImageSet set;
  set.count = 1;
  set.height = file.image.height;
  set.width = file.image.width;
  set.channels = channels;
  set.own(std::move(file.image.pixels));
  set.summary = fmt::format("1 image of {}x{}x{} from {} ({}: {}), no labels", set.height, set.width, set.channels,
                            path.string(), describe(file.kind), describe_treatment(file.kind, channels));
  if (const ImageSize size{set.height, set.width}; size != file.stored) {
    set.summary +=
        fmt::format("; of {} before: {}", describe(file.stored), describe_fit(file.stored, size, settings.crop));
  }
  return set;
}

bool is_image_file(const fs::path& path) {
  if (has_image_name(path)) return true;
  std::vector<std::byte> head(16);
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(head.data()), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(file.gcount()));
  return format_of(head).has_value();
}

}  // namespace

ImageSet load_images(const fs::path& path, const LoadSettings& settings, const LoadReport& report) {
  check(settings);
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (!fs::exists(status)) return read_idx(path);  // Says why: missing, or no permission.
  const bool idx = fs::is_directory(status) ? holds_idx(path) : !(fs::is_regular_file(status) && is_image_file(path));
  if (fs::is_directory(status) && !idx) return load_folder(path, settings, report);
  if (settings.class_from_folder) {
    throw Error(fmt::format("--class-from-folder needs a folder of images, and '{}' is not one", path.string()),
                "leave it out: the labels of IDX data lie in the file beside the images", ExitCode::wrong_usage);
  }
  ImageSet set = is_unet_cu_data(path) ? fit_packed(read_unet_cu_data(path), settings)
                 : idx                 ? fit_packed(read_idx(path), settings)
                                       : load_single(path, settings);
  if (settings.look_only) set.own({});
  return set;
}

}  // namespace difuse::runtime
