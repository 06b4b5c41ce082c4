#include "models/unet_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <string_view>

#include "ir/error.h"

namespace difuse::models {
namespace {

// Far above any model, far below where a product of shapes overflows.
constexpr int64_t kMaxLevels = 16, kMaxSize = 1 << 16, kMaxChannels = 1 << 16, kMaxBlocks = 64, kMaxClasses = 1 << 24;

const std::vector<int64_t> kSameAsEncoder = {0};

void check_range(std::string_view name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  wrong_usage(fmt::format("{} is {}", name, value), fmt::format("choose {} to {}", least, most));
}

void check_levels(const UNetConfig& c) {
  check_range("the number of entries of channel_mult", c.levels(), 1, kMaxLevels);
  for (int64_t level = 0; level < c.levels(); ++level) {
    const double mult = c.channel_mult[static_cast<size_t>(level)];
    if (!(mult > 0 && mult <= 1024)) {
      wrong_usage(fmt::format("channel_mult has the entry {}", mult), "choose multipliers above 0 and up to 1024");
    }
    if (c.width(level) < 1) {
      wrong_usage(fmt::format("level {} has {} x {} = 0 channels", level, c.model_channels, mult),
                  "raise model_channels or the multiplier");
    }
  }
}

/// What the levels divide the image's sides by.
int64_t size_divisor(const UNetConfig& c) {
  return c.family == UNetFamily::residual ? int64_t{1} << (c.levels() - 1) : 1;
}

/// The next larger size that suits the levels and, of a model that enlarges images, low_res_factor.
int64_t size_above(const UNetConfig& c, int64_t size) {
  const int64_t unit = std::lcm(size_divisor(c), c.conditioning_channels > 0 ? c.low_res_factor : 1);
  return (size / unit + 1) * unit;
}

void check_size(const UNetConfig& c) {
  const int64_t divisor = size_divisor(c);
  for (const auto& [name, size] : {std::pair{"height", c.image_height}, std::pair{"width", c.image_width}}) {
    if (size % divisor == 0) continue;
    int64_t levels = 1;
    while (c.image_height % (int64_t{1} << levels) == 0 && c.image_width % (int64_t{1} << levels) == 0) ++levels;
    wrong_usage(fmt::format("the image {} {} is not divisible by {}", name, size, divisor),
                fmt::format("{} levels need {}, or use {} level{}", c.levels(), size_above(c, size), levels,
                            levels == 1 ? "" : "s"));
  }
}

void check_groups(const UNetConfig& c) {
  int64_t common = 0;  // every norm's width is a sum of level widths, and each level's width is a norm's
  for (int64_t level = 0; level < c.levels(); ++level) common = std::gcd(common, c.width(level));
  if (common % c.groups == 0) return;
  int64_t groups = std::min(c.groups, common);
  while (common % groups != 0) --groups;
  int64_t bad = 0;
  while (c.width(bad) % c.groups == 0) ++bad;
  UNetConfig wider = c;
  auto fits = [&] {
    for (int64_t level = 0; level < c.levels(); ++level) {
      if (wider.width(level) % c.groups != 0) return false;
    }
    return true;
  };
  while (wider.model_channels < 2 * kMaxChannels && !fits()) ++wider.model_channels;
  wrong_usage(fmt::format("level {} has {} x {} = {} channels, which {} groups do not divide", bad, c.model_channels,
                          c.channel_mult[static_cast<size_t>(bad)], c.width(bad), c.groups),
              fits() ? fmt::format("use {} groups, or {} model channels", groups, wider.model_channels)
                     : fmt::format("use {} groups", groups));
}

void check_rates(const UNetConfig& c, std::string_view name, const std::vector<int64_t>& attention) {
  for (int64_t rate : attention) {
    bool found = false;
    std::vector<int64_t> rates;
    for (int64_t level = 0; level < c.levels(); ++level) {
      rates.push_back(int64_t{1} << level);
      found |= rates.back() == rate;
    }
    if (!found) {
      wrong_usage(fmt::format("{} has {}, where no level is", name, rate),
                  fmt::format("{} levels are at {}", c.levels(), fmt::join(rates, ", ")));
    }
  }
}

void check_attention(const UNetConfig& c) {
  check_rates(c, "attention_resolutions", c.attention_resolutions);
  if (c.decoder_attention_resolutions != kSameAsEncoder) {
    check_rates(c, "decoder_attention_resolutions", c.decoder_attention_resolutions);
  }
  for (int64_t level = 0; level < c.levels(); ++level) {
    const bool middle = c.middle_attention && level == c.levels() - 1;
    if (!c.attention_at(level) && !c.decoder_attention_at(level) && !middle) continue;
    const int64_t channels = c.width(level);
    const bool by_width = c.num_head_channels > 0;
    const int64_t divisor = by_width ? c.num_head_channels : c.num_heads;
    if (channels % divisor == 0) continue;
    int64_t choice = std::min(divisor, channels);
    while (channels % choice != 0) --choice;
    if (by_width) {
      wrong_usage(fmt::format("attention on {} channels cannot have heads of {} channels", channels, divisor),
                  fmt::format("set num_head_channels to {}", choice));
    }
    wrong_usage(fmt::format("attention on {} channels cannot have {} heads", channels, divisor),
                fmt::format("set num_heads to {}", choice));
  }
}

void check_resampling(const UNetConfig& c) {
  const auto entries = static_cast<size_t>(c.levels() - 1);
  for (const auto& [name, list] : {std::pair{"encoder_resampling", &c.encoder_resampling},
                                   std::pair{"decoder_resampling", &c.decoder_resampling}}) {
    if (list->empty() || list->size() == entries) continue;
    wrong_usage(fmt::format("{} has {} entries for {} levels", name, list->size(), c.levels()),
                fmt::format("give {}, one for each border between levels, or none", entries));
  }
}

/// Fields that say something about what this family does not have would be overlooked in silence.
void check_strided(const UNetConfig& c) {
  const UNetConfig defaults;
  auto require = [](bool fits, const char* name) {
    if (!fits) wrong_usage(fmt::format("the strided family has no {}", name), fmt::format("leave {} out", name));
  };
  require(c.attention_resolutions.empty(), "attention_resolutions");
  require(c.decoder_attention_resolutions == defaults.decoder_attention_resolutions, "decoder_attention_resolutions");
  require(c.num_classes == 0, "num_classes");
  require(!c.use_scale_shift_norm, "use_scale_shift_norm");
  require(!c.resblock_updown, "resblock_updown");
  require(c.encoder_resampling.empty(), "encoder_resampling");
  require(c.decoder_resampling.empty(), "decoder_resampling");
  require(c.dropout == 0, "dropout");
}

void check_low_res(const UNetConfig& c) {
  check_range("low_res_factor", c.low_res_factor, 2, 64);
  if (c.conditioning_channels == 0) return;
  for (const auto& [name, size] : {std::pair{"height", c.image_height}, std::pair{"width", c.image_width}}) {
    if (size % c.low_res_factor == 0) continue;
    wrong_usage(
        fmt::format("the image {} {} is not {} times that of a low-resolution image", name, size, c.low_res_factor),
        fmt::format("choose a {} that low_res_factor divides, such as {}", name, size_above(c, size)));
  }
}

constexpr std::array kFamilies = {std::string_view("residual"), std::string_view("strided")};
constexpr std::array kResamplings = {std::string_view("convolution"), std::string_view("plain"),
                                     std::string_view("residual")};

}  // namespace

std::string_view to_string(UNetFamily family) { return kFamilies.at(static_cast<size_t>(family)); }
std::string_view to_string(Resampling resampling) { return kResamplings.at(static_cast<size_t>(resampling)); }

int64_t UNetConfig::width(int64_t level) const {
  return static_cast<int64_t>(static_cast<double>(model_channels) * channel_mult[static_cast<size_t>(level)]);
}

bool UNetConfig::attention_at(int64_t level) const {
  return std::ranges::count(attention_resolutions, int64_t{1} << level) > 0;
}

bool UNetConfig::decoder_attention_at(int64_t level) const {
  if (decoder_attention_resolutions == kSameAsEncoder) return attention_at(level);
  return std::ranges::count(decoder_attention_resolutions, int64_t{1} << level) > 0;
}

namespace {

Resampling resampling_of(const UNetConfig& c, const std::vector<Resampling>& list, int64_t level) {
  if (!list.empty()) return list[static_cast<size_t>(level)];
  if (c.resblock_updown) return Resampling::residual;
  return c.conv_resample ? Resampling::convolution : Resampling::plain;
}

}  // namespace

Resampling UNetConfig::downsampling(int64_t level) const { return resampling_of(*this, encoder_resampling, level); }
Resampling UNetConfig::upsampling(int64_t level) const { return resampling_of(*this, decoder_resampling, level); }

void check(const UNetConfig& c) {
  check_range("image_height", c.image_height, 1, kMaxSize);
  check_range("image_width", c.image_width, 1, kMaxSize);
  check_range("image_channels", c.image_channels, 1, 1024);
  check_range("conditioning_channels", c.conditioning_channels, 0, 1024);
  check_range("downsample_padding", c.downsample_padding, 0, 1);
  check_range("model_channels", c.model_channels, 2, kMaxChannels);
  check_range("num_res_blocks", c.num_res_blocks, 1, kMaxBlocks);
  check_range("groups", c.groups, 1, kMaxChannels);
  check_range("num_heads", c.num_heads, 1, kMaxChannels);
  check_range("num_head_channels", c.num_head_channels, 0, kMaxChannels);
  check_range("num_classes", c.num_classes, 0, kMaxClasses);
  if (!(c.dropout >= 0 && c.dropout < 1)) {
    wrong_usage(fmt::format("dropout is {}", c.dropout), "choose a probability from 0 to below 1");
  }
  if (!(c.norm_eps > 0 && c.norm_eps < 1)) {
    wrong_usage(fmt::format("norm_eps is {}", c.norm_eps), "choose a value above 0 and below 1, such as 1e-5");
  }
  if (!(c.max_period > 1 && std::isfinite(c.max_period))) {
    wrong_usage(fmt::format("max_period is {}", c.max_period), "choose a value above 1, such as 10000");
  }
  if (!(c.freq_shift >= 0 && c.freq_shift < static_cast<double>(c.model_channels / 2))) {
    wrong_usage(fmt::format("freq_shift is {}, of {} frequencies", c.freq_shift, c.model_channels / 2),
                "choose 0 or 1");
  }
  check_levels(c);
  check_low_res(c);
  if (c.family == UNetFamily::strided) {
    check_strided(c);
    return;
  }
  check_resampling(c);
  check_size(c);
  check_groups(c);
  check_attention(c);
}

}  // namespace difuse::models
