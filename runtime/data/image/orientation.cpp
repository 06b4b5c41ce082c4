#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/data/image/formats.h"

namespace difuse::runtime {

namespace {

/// Bounds-checked integers of a TIFF block, in the byte order that it announces.
class TiffReader {
 public:
  TiffReader(std::span<const std::byte> bytes, bool big_endian) : bytes_(bytes), big_endian_(big_endian) {}

  /// 0 past the end.
  std::uint32_t read(std::size_t at, std::size_t size) const {
    if (at > bytes_.size() || bytes_.size() - at < size) return 0;
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < size; ++i) {
      value = value << 8 | std::to_integer<std::uint32_t>(bytes_[at + (big_endian_ ? i : size - 1 - i)]);
    }
    return value;
  }

 private:
  std::span<const std::byte> bytes_;
  bool big_endian_;
};

}  // namespace

int exif_orientation(std::span<const std::byte> tiff) {
  constexpr char kPrefix[] = {'E', 'x', 'i', 'f', 0, 0};
  if (tiff.size() >= sizeof(kPrefix) && std::memcmp(tiff.data(), kPrefix, sizeof(kPrefix)) == 0) {
    tiff = tiff.subspan(sizeof(kPrefix));
  }
  if (tiff.size() < 8) return 1;
  const bool big_endian = tiff[0] == std::byte{'M'};
  if (!big_endian && tiff[0] != std::byte{'I'}) return 1;
  const TiffReader reader(tiff, big_endian);
  if (reader.read(2, 2) != 42) return 1;

  constexpr std::uint32_t kOrientation = 0x0112, kShort = 3;
  constexpr std::size_t kEntry = 12;
  const std::size_t directory = reader.read(4, 4);
  const std::size_t entries = reader.read(directory, 2);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t at = directory + 2 + i * kEntry;
    if (at + kEntry > tiff.size()) break;
    if (reader.read(at, 2) != kOrientation) continue;
    const std::uint32_t value = reader.read(at + 2, 2) == kShort ? reader.read(at + 8, 2) : 1;
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

Image turn_upright(Image image, int orientation) {
  if (orientation == 1) return image;
  // 5 .. 8 swap the axes; which stored axis runs backwards along the shown x and y:
  //   2 x, 3 x and y, 4 y, 5 none, 6 y, 7 x and y, 8 x.
  const bool swap = orientation >= 5;
  const bool flip_stored_x = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const bool flip_stored_y = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  Image upright{swap ? image.height : image.width, swap ? image.width : image.height, image.channels, {}};
  upright.pixels.resize(image.pixels.size());
  const auto channels = static_cast<std::size_t>(image.channels);
  std::uint8_t* to = upright.pixels.data();
  for (int y = 0; y < upright.height; ++y) {
    for (int x = 0; x < upright.width; ++x, to += channels) {
      const int stored_x = swap ? y : x, stored_y = swap ? x : y;
      const std::size_t column = flip_stored_x ? image.width - 1 - stored_x : stored_x;
      const std::size_t row = flip_stored_y ? image.height - 1 - stored_y : stored_y;
      std::copy_n(&image.pixels[(row * image.width + column) * channels], channels, to);
    }
  }
  return upright;
}

}  // namespace difuse::runtime
