#include "runtime/data/unet_cu_data.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string_view>
#include <system_error>

#include "ir/error.h"
#include "runtime/mapped_file.h"

namespace difuse::runtime {
namespace {

constexpr std::int32_t kMagic = 20240620;
constexpr std::int64_t kMaxSide = 1 << 14;

using Header = std::array<std::int32_t, 256>;

}  // namespace

bool is_unet_cu_data(const std::filesystem::path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::int32_t magic = 0;
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&magic), sizeof magic);
  return magic == kMagic;
}

ImageSet read_unet_cu_data(const std::filesystem::path& path) {
  const MappedFile file(path);
  const auto refuse = [&](std::string_view what) {
    throw Error(fmt::format("'{}' is an image file of unet.cu, but {}", path.string(), what),
                "copy the file again, or make it again with prepare_data.py");
  };
  Header header{};
  if (file.bytes().size() < sizeof header) refuse("is truncated: it ends inside its header");
  std::memcpy(header.data(), file.bytes().data(), sizeof header);
  const std::int64_t count = header[1], channels = header[2], height = header[3], width = header[4];
  if (count < 1) refuse(fmt::format("it holds {} images", count));
  if (height < 1 || width < 1 || height > kMaxSide || width > kMaxSide ||
      (channels != 1 && channels != 3 && channels != 4)) {
    refuse(fmt::format("its header says {} channels of {} x {}", channels, height, width));
  }
  const std::int64_t plane = height * width, each = channels * plane;
  const auto data = file.bytes().subspan(sizeof header);
  const auto needed = static_cast<std::uint64_t>(count) * static_cast<std::uint64_t>(each) * sizeof(float);  // < 2^63
  if (needed != data.size()) {
    refuse(fmt::format("{}: its header says {} images of {}x{}x{}, and it has {} bytes of data",
                       needed > data.size() ? "is truncated" : "has more than it says", count, height, width, channels,
                       data.size()));
  }

  ImageSet set;
  set.count = count;
  set.height = static_cast<int>(height);
  set.width = static_cast<int>(width);
  set.channels = static_cast<int>(channels);
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(count * each));
  for (std::int64_t image = 0; image < count; ++image) {
    for (std::int64_t i = 0; i < each; ++i) {
      float value = 0;
      std::memcpy(&value, data.data() + (image * each + i) * static_cast<std::int64_t>(sizeof value), sizeof value);
      const float level = std::nearbyint((value + 1) * 127.5f);
      if (!(level >= 0 && level <= 255)) refuse(fmt::format("its image {} has the value {}", image, value));
      const std::int64_t channel = i / plane, pixel = i % plane;
      pixels[static_cast<std::size_t>(image * each + pixel * channels + channel)] = static_cast<std::uint8_t>(level);
    }
  }
  set.own(std::move(pixels));
  set.summary =
      fmt::format("{} images of {}x{}x{} from {} (unet.cu), no labels", count, height, width, channels, path.string());
  return set;
}

}  // namespace difuse::runtime
