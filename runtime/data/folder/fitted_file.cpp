#include "runtime/data/folder/fitted_file.h"

#include <new>
#include <utility>

#include "runtime/data/image/decode.h"

namespace difuse::runtime {

FittedFile read_fitted(const std::filesystem::path& path, const LoadSettings& settings) {
  FittedFile file;
  try {
    Decoded decoded;
    file.fault = decode_file(path, settings.limits, decoded);
    if (file.fault) return file;
    file.kind = decoded.kind;
    file.stored = {decoded.image.height, decoded.image.width};
    const ImageSize size = settings.size.height > 0 ? settings.size : file.stored;
    file.fault = misfit(decoded.image, size, settings.crop);
    if (file.fault) return file;
    file.image = resize(to_channels(std::move(decoded.image), settings.channels), size, settings.crop);
  } catch (const std::bad_alloc&) {
    file.fault = "needs more memory to decode than there is";
  }
  return file;
}

}  // namespace difuse::runtime
