#include "runtime/data/image/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "ir/error.h"

namespace difuse::runtime {

namespace {

std::uint8_t over_white(int value, int alpha) {
  return static_cast<std::uint8_t>((value * alpha + 255 * (255 - alpha) + 127) / 255);
}

/// Weights in 1/65536, which sum to 1.
std::uint8_t luma(int r, int g, int b) {
  return static_cast<std::uint8_t>((r * 19595 + g * 38470 + b * 7471 + 32768) >> 16);
}

/// One axis of a resampling: output i is the sum of weight * source over its taps, divided by `total`.
struct Axis {
  struct Output {
    int first = 0;            ///< Source index of the first tap.
    std::size_t weights = 0;  ///< Where its weights begin.
    int taps = 0;
  };
  std::vector<Output> outputs;
  std::vector<std::uint32_t> weights;
  std::uint64_t total = 1;

  void begin(int first) { outputs.push_back({first, weights.size(), 0}); }
  void add(std::int64_t weight) {
    weights.push_back(static_cast<std::uint32_t>(weight));
    ++outputs.back().taps;
  }
  std::span<const std::uint32_t> taps(const Output& output) const {
    return std::span(weights).subspan(output.weights, output.taps);
  }
};

/// Outputs offset .. offset + count - 1 of `from` pixels resampled to `to`.
Axis make_axis(std::int64_t from, std::int64_t to, std::int64_t offset, int count) {
  Axis axis;
  if (to == from) {
    for (int i = 0; i < count; ++i) {
      axis.begin(static_cast<int>(offset) + i);
      axis.add(1);
    }
  } else if (to < from) {
    // In units of 1/to of a source pixel, output i covers [i * from, (i + 1) * from) and source j [j * to, (j + 1) *
    // to).
    axis.total = from;
    for (std::int64_t i = offset; i < offset + count; ++i) {
      const std::int64_t begin = i * from, end = begin + from;
      axis.begin(static_cast<int>(begin / to));
      for (std::int64_t j = begin / to; j * to < end; ++j)
        axis.add(std::min(end, (j + 1) * to) - std::max(begin, j * to));
    }
  } else {
    // In units of 1/(2 * to) of a source pixel, counted from the first source centre, output i lies at
    // (2 i + 1) * from - to; beyond the first and last centre the edge is repeated.
    axis.total = 2 * to;
    for (std::int64_t i = offset; i < offset + count; ++i) {
      const std::int64_t last = (from - 1) * 2 * to;
      const std::int64_t at = std::clamp<std::int64_t>((2 * i + 1) * from - to, 0, last);
      const std::int64_t j = at / (2 * to), behind = at - j * 2 * to;
      axis.begin(static_cast<int>(j));
      axis.add(2 * to - behind);
      if (behind > 0) axis.add(behind);
    }
  }
  return axis;
}

struct Uncut {
  std::int64_t height = 0;
  std::int64_t width = 0;
};

/// The size before cutting: with `center` one axis has its final length, and the other that or more.
Uncut uncut_size(const Image& image, const ImageSize& size, Crop crop) {
  Uncut uncut{size.height, size.width};
  if (crop == Crop::none) return uncut;
  const std::int64_t height = image.height, width = image.width;
  const auto scaled = [](std::int64_t side, std::int64_t to, std::int64_t from) {
    return (side * to * 2 + from) / (from * 2);  // Rounded.
  };
  if (uncut.height * width >= uncut.width * height) {
    uncut.width = std::max(uncut.width, scaled(width, uncut.height, height));
  } else {
    uncut.height = std::max(uncut.height, scaled(height, uncut.width, width));
  }
  return uncut;
}

/// What is summed: the samples themselves, or with alpha the colours times alpha and the alpha.
void weigh_by_alpha(const std::uint8_t* from, std::span<std::uint32_t> to) {
  for (std::size_t i = 0; i < to.size(); i += 4) {
    for (int c = 0; c < 3; ++c) to[i + c] = std::uint32_t{from[i + c]} * from[i + 3];
    to[i + 3] = from[i + 3];
  }
}

class Resampler {
 public:
  Resampler(const Image& image, Axis rows, Axis columns)
      : image_(image), rows_(std::move(rows)), columns_(std::move(columns)) {
    const auto channels = static_cast<std::size_t>(image.channels);
    source_.resize(image.width * channels);
    for (auto& row : narrow_) row.sums.resize(columns_.outputs.size() * channels);
    sums_.resize(columns_.outputs.size() * channels);
  }

  Image run() {
    Image result{
        static_cast<int>(columns_.outputs.size()), static_cast<int>(rows_.outputs.size()), image_.channels, {}};
    result.pixels.resize(sums_.size() * rows_.outputs.size());
    std::uint8_t* to = result.pixels.data();
    for (const Axis::Output& output : rows_.outputs) {
      std::fill(sums_.begin(), sums_.end(), 0);
      int row = output.first;
      for (const std::uint32_t weight : rows_.taps(output)) {
        const std::vector<std::uint64_t>& narrow = narrow_row(row++);
        for (std::size_t i = 0; i < sums_.size(); ++i) sums_[i] += weight * narrow[i];
      }
      finish(to);
      to += sums_.size();
    }
    return result;
  }

 private:
  struct Row {
    int source = -1;
    std::vector<std::uint64_t> sums;
  };

  /// Source row `row` resampled along x. Neighbouring output rows share at most two source rows.
  const std::vector<std::uint64_t>& narrow_row(int row) {
    Row& slot = narrow_[row % narrow_.size()];
    if (slot.source == row) return slot.sums;
    slot.source = row;
    const auto channels = static_cast<std::size_t>(image_.channels);
    const std::uint8_t* pixels = &image_.pixels[row * source_.size()];
    if (channels == 4) {
      weigh_by_alpha(pixels, source_);
    } else {
      std::copy_n(pixels, source_.size(), source_.begin());
    }
    std::uint64_t* to = slot.sums.data();
    for (const Axis::Output& output : columns_.outputs) {
      const std::uint32_t* from = &source_[output.first * channels];
      const std::span<const std::uint32_t> taps = columns_.taps(output);
      for (std::size_t c = 0; c < channels; ++c) {
        std::uint64_t sum = 0;
        for (std::size_t t = 0; t < taps.size(); ++t) sum += std::uint64_t{taps[t]} * from[t * channels + c];
        *to++ = sum;
      }
    }
    return slot.sums;
  }

  static std::uint8_t rounded(std::uint64_t sum, std::uint64_t total) {
    return static_cast<std::uint8_t>((sum + total / 2) / total);
  }

  void finish(std::uint8_t* to) const {
    const std::uint64_t total = rows_.total * columns_.total;
    if (image_.channels != 4) {
      for (std::size_t i = 0; i < sums_.size(); ++i) to[i] = rounded(sums_[i], total);
      return;
    }
    for (std::size_t i = 0; i < sums_.size(); i += 4) {
      const std::uint64_t alpha = sums_[i + 3];
      for (int c = 0; c < 3; ++c) to[i + c] = alpha == 0 ? 0 : rounded(sums_[i + c], alpha);
      to[i + 3] = rounded(alpha, total);
    }
  }

  const Image& image_;
  Axis rows_;
  Axis columns_;
  std::vector<std::uint32_t> source_;
  std::array<Row, 2> narrow_;
  std::vector<std::uint64_t> sums_;
};

}  // namespace

std::string_view to_string(Crop crop) { return crop == Crop::center ? "center" : "none"; }

std::optional<Crop> parse_crop(std::string_view text) {
  for (const Crop crop : {Crop::center, Crop::none}) {
    if (to_string(crop) == text) return crop;
  }
  return std::nullopt;
}

ImageSize parse_image_size(std::string_view flag, std::string_view text) {
  constexpr int kMaxSide = 1 << 16;
  const auto side = [](std::string_view part) {
    int value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    return error == std::errc() && end == part.data() + part.size() && value <= kMaxSide ? value : 0;
  };
  const std::size_t cross = text.find('x');
  const ImageSize size = cross == std::string_view::npos
                             ? ImageSize{side(text), side(text)}
                             : ImageSize{side(text.substr(0, cross)), side(text.substr(cross + 1))};
  if (size.height < 1 || size.width < 1) {
    throw Error(
        fmt::format("{} {} is not an image size", flag, text),
        fmt::format("give a side such as {0} 64, or height x width such as {0} 48x80, up to {1}", flag, kMaxSide),
        ExitCode::wrong_usage);
  }
  return size;
}

std::string describe(const ImageSize& size) { return fmt::format("{}x{}", size.height, size.width); }

std::string describe_fit(const ImageSize& from, const ImageSize& to, Crop crop) {
  if (std::int64_t{from.height} * to.width == std::int64_t{from.width} * to.height) return "resized";
  return crop == Crop::center ? "resized to cover it, then cut around the centre" : "squeezed to it, nothing cut";
}

Image to_channels(Image image, int channels) {
  if (image.channels == channels) return image;
  Image result{image.width, image.height, channels, {}};
  const std::size_t count = static_cast<std::size_t>(image.width) * image.height;
  result.pixels.resize(count * channels);
  const std::uint8_t* from = image.pixels.data();
  std::uint8_t* to = result.pixels.data();
  for (std::size_t i = 0; i < count; ++i, from += image.channels, to += channels) {
    std::array<std::uint8_t, 3> colour = {from[0], from[0], from[0]};
    if (image.channels > 1) std::copy_n(from, 3, colour.begin());
    if (image.channels == 4) {
      for (std::uint8_t& value : colour) value = over_white(value, from[3]);
    }
    if (channels == 1) {
      to[0] = luma(colour[0], colour[1], colour[2]);
    } else {
      std::copy(colour.begin(), colour.end(), to);
      if (channels == 4) to[3] = 255;
    }
  }
  return result;
}

std::optional<std::string> misfit(const Image& image, const ImageSize& size, Crop crop) {
  // Keeps every sum of Resampler below 2^64.
  constexpr std::int64_t kMaxUncut = 1 << 22;
  const Uncut uncut = uncut_size(image, size, crop);
  if (uncut.height <= kMaxUncut && uncut.width <= kMaxUncut) return std::nullopt;
  return fmt::format("is too long and thin ({} x {}) to become {}", image.height, image.width, describe(size));
}

Image resize(const Image& image, const ImageSize& size, Crop crop) {
  if (image.height == size.height && image.width == size.width) return image;
  const Uncut uncut = uncut_size(image, size, crop);
  const auto axis = [](std::int64_t from, std::int64_t to, int kept) {
    return make_axis(from, to, (to - kept) / 2, kept);
  };
  return Resampler(image, axis(image.height, uncut.height, size.height), axis(image.width, uncut.width, size.width))
      .run();
}

}  // namespace difuse::runtime
