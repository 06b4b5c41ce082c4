#include "runtime/png.h"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "ir/error.h"
#include "runtime/atomic_file.h"
#include "runtime/mapped_file.h"

namespace difuse::runtime {

namespace {

/// libpng's simplified interface: it reports errors in the struct instead of jumping over C++ frames.
class PngHandle {
 public:
  PngHandle() { image.version = PNG_IMAGE_VERSION; }
  ~PngHandle() { png_image_free(&image); }
  PngHandle(const PngHandle&) = delete;
  PngHandle& operator=(const PngHandle&) = delete;

  png_image image{};
};

png_uint_32 format_of(int channels) {
  return channels == 1 ? PNG_FORMAT_GRAY : channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_RGBA;
}

std::size_t pixel_bytes(const Image& image) {
  return static_cast<std::size_t>(image.width) * image.height * image.channels;
}

void check(const Image& image) {
  const bool channels_ok = image.channels == 1 || image.channels == 3 || image.channels == 4;
  if (image.width < 1 || image.height < 1 || !channels_ok || image.pixels.size() != pixel_bytes(image)) {
    throw Error(fmt::format("a picture of {}x{} pixels with {} channels and {} bytes cannot be stored", image.width,
                            image.height, image.channels, image.pixels.size()),
                "pictures have 1, 3 or 4 channels and width x height x channels bytes");
  }
}

}  // namespace

void write_png(const std::filesystem::path& path, const Image& image) {
  check(image);
  PngHandle png;
  png.image.width = image.width;
  png.image.height = image.height;
  png.image.format = format_of(image.channels);

  // One pass into a buffer of the largest possible size: asking for the exact size first would compress twice.
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png.image);
  std::vector<std::byte> encoded(size);
  const int row_bytes = image.width * image.channels;
  if (png_image_write_to_memory(&png.image, encoded.data(), &size, 0, image.pixels.data(), row_bytes, nullptr) == 0) {
    throw Error(fmt::format("cannot encode '{}': {}", path.string(), png.image.message));
  }
  AtomicFile file(path, size);
  file.write(std::span(encoded).first(size));
  file.commit();
}

Image read_png(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto fail = [&](const char* reason) {
    throw Error(fmt::format("'{}' is not a readable PNG: {}", path.string(), reason), "give an undamaged PNG file");
  };
  if (file.bytes().empty()) fail("it is empty");
  PngHandle png;
  if (png_image_begin_read_from_memory(&png.image, file.bytes().data(), file.bytes().size()) == 0) {
    fail(png.image.message);
  }
  Image image;
  image.width = static_cast<int>(png.image.width);
  image.height = static_cast<int>(png.image.height);
  image.channels = (png.image.format & PNG_FORMAT_FLAG_ALPHA) ? 4 : (png.image.format & PNG_FORMAT_FLAG_COLOR) ? 3 : 1;
  image.pixels.resize(pixel_bytes(image));
  png.image.format = format_of(image.channels);
  const int row_bytes = image.width * image.channels;
  if (png_image_finish_read(&png.image, nullptr, image.pixels.data(), row_bytes, nullptr) == 0) {
    fail(png.image.message);
  }
  return image;
}

Image make_grid(std::span<const Image> images, int columns, int padding) {
  if (images.empty() || columns < 1 || padding < 0) {
    throw Error(fmt::format("no grid of {} images in {} columns with padding {}", images.size(), columns, padding),
                "a grid needs at least one image, one column and a padding of 0 or more");
  }
  const Image& first = images.front();
  for (const Image& image : images) {
    check(image);
    if (image.width != first.width || image.height != first.height || image.channels != first.channels) {
      throw Error("the images of a grid must have one size and channel count");
    }
  }
  const int count = static_cast<int>(images.size());
  columns = std::min(columns, count);
  const int rows = (count + columns - 1) / columns;

  Image grid;
  grid.width = columns * (first.width + padding) + padding;
  grid.height = rows * (first.height + padding) + padding;
  grid.channels = first.channels;
  grid.pixels.assign(pixel_bytes(grid), 0);
  const std::size_t row_bytes = static_cast<std::size_t>(first.width) * first.channels;
  for (int i = 0; i < count; ++i) {
    const std::size_t left = padding + static_cast<std::size_t>(i % columns) * (first.width + padding);
    const std::size_t top = padding + static_cast<std::size_t>(i / columns) * (first.height + padding);
    for (int y = 0; y < first.height; ++y) {
      std::memcpy(&grid.pixels[((top + y) * grid.width + left) * grid.channels], &images[i].pixels[y * row_bytes],
                  row_bytes);
    }
  }
  return grid;
}

}  // namespace difuse::runtime
