// One image file on its way into a set.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "runtime/data/image/fit.h"
#include "runtime/data/image/image_kind.h"
#include "runtime/data/load.h"

namespace difuse::runtime {

/// A file decoded and brought to a size and channels, or what is wrong with it.
struct FittedFile {
  std::optional<std::string>
      fault;  ///< The rest of a sentence whose subject is the file; without one, the others hold.
  ImageKind kind;
  ImageSize stored;  ///< The upright image's own size.
  Image image;
};

/// Of `settings` only size (0 x 0: the image's own), channels, crop and limits count. Never throws on bad data.
FittedFile read_fitted(const std::filesystem::path& path, const LoadSettings& settings);

}  // namespace difuse::runtime
