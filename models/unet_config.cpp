#include "models/unet_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <string_view>

#include "ir/error.h"

namespace difuse::models {
namespace {

// Far above any model, far below where a product of shapes overflows.
constexpr int64_t kMaxLevels = 16, kMaxSize = 1 << 16, kMaxChannels = 1 << 16, kMaxBlocks = 64, kMaxClasses = 1 << 24;

[[noreturn]] void refuse(const std::string& message, std::string remedy) {
  throw Error(message, std::move(remedy), ExitCode::wrong_usage);
}

void check_range(std::string_view name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  refuse(fmt::format("{} is {}", name, value), fmt::format("choose {} to {}", least, most));
}

void check_levels(const UNetConfig& c) {
  check_range("the number of entries of channel_mult", c.levels(), 1, kMaxLevels);
  for (int64_t level = 0; level < c.levels(); ++level) {
    const double mult = c.channel_mult[static_cast<size_t>(level)];
    if (!(mult > 0 && mult <= 1024)) {
      refuse(fmt::format("channel_mult has the entry {}", mult), "choose multipliers above 0 and up to 1024");
    }
    if (c.width(level) < 1) {
      refuse(fmt::format("level {} has {} x {} = 0 channels", level, c.model_channels, mult),
             "raise model_channels or the multiplier");
    }
  }
}

void check_size(const UNetConfig& c) {
  const int64_t divisor = int64_t{1} << (c.levels() - 1);
  for (const auto& [name, size] : {std::pair{"height", c.image_height}, std::pair{"width", c.image_width}}) {
    if (size % divisor == 0) continue;
    int64_t levels = 1;
    while (c.image_height % (int64_t{1} << levels) == 0 && c.image_width % (int64_t{1} << levels) == 0) ++levels;
    const int64_t above = (size / divisor + 1) * divisor;
    refuse(fmt::format("the image {} {} is not divisible by {}", name, size, divisor),
           fmt::format("{} levels need {}, or use {} level{}", c.levels(), above, levels, levels == 1 ? "" : "s"));
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
  refuse(fmt::format("level {} has {} x {} = {} channels, which {} groups do not divide", bad, c.model_channels,
                     c.channel_mult[static_cast<size_t>(bad)], c.width(bad), c.groups),
         fits() ? fmt::format("use {} groups, or {} model channels", groups, wider.model_channels)
                : fmt::format("use {} groups", groups));
}

void check_attention(const UNetConfig& c) {
  for (int64_t rate : c.attention_resolutions) {
    bool found = false;
    std::vector<int64_t> rates;
    for (int64_t level = 0; level < c.levels(); ++level) {
      rates.push_back(int64_t{1} << level);
      found |= rates.back() == rate;
    }
    if (!found) {
      refuse(fmt::format("attention_resolutions has {}, where no level is", rate),
             fmt::format("{} levels are at {}", c.levels(), fmt::join(rates, ", ")));
    }
  }
  for (int64_t level = 0; level < c.levels(); ++level) {
    if (!c.attention_at(level) && level != c.levels() - 1) continue;  // the middle block is at the last
    const int64_t channels = c.width(level);
    const bool by_width = c.num_head_channels > 0;
    const int64_t divisor = by_width ? c.num_head_channels : c.num_heads;
    if (channels % divisor == 0) continue;
    int64_t choice = std::min(divisor, channels);
    while (channels % choice != 0) --choice;
    if (by_width) {
      refuse(fmt::format("attention on {} channels cannot have heads of {} channels", channels, divisor),
             fmt::format("set num_head_channels to {}", choice));
    }
    refuse(fmt::format("attention on {} channels cannot have {} heads", channels, divisor),
           fmt::format("set num_heads to {}", choice));
  }
}

}  // namespace

int64_t UNetConfig::width(int64_t level) const {
  return static_cast<int64_t>(static_cast<double>(model_channels) * channel_mult[static_cast<size_t>(level)]);
}

bool UNetConfig::attention_at(int64_t level) const {
  return std::ranges::count(attention_resolutions, int64_t{1} << level) > 0;
}

void check(const UNetConfig& c) {
  check_range("image_height", c.image_height, 1, kMaxSize);
  check_range("image_width", c.image_width, 1, kMaxSize);
  check_range("image_channels", c.image_channels, 1, 1024);
  check_range("model_channels", c.model_channels, 2, kMaxChannels);
  check_range("num_res_blocks", c.num_res_blocks, 1, kMaxBlocks);
  check_range("groups", c.groups, 1, kMaxChannels);
  check_range("num_heads", c.num_heads, 1, kMaxChannels);
  check_range("num_head_channels", c.num_head_channels, 0, kMaxChannels);
  check_range("num_classes", c.num_classes, 0, kMaxClasses);
  if (!(c.dropout >= 0 && c.dropout < 1)) {
    refuse(fmt::format("dropout is {}", c.dropout), "choose a probability from 0 to below 1");
  }
  if (!(c.norm_eps > 0 && c.norm_eps < 1)) {
    refuse(fmt::format("norm_eps is {}", c.norm_eps), "choose a value above 0 and below 1, such as 1e-5");
  }
  if (!(c.max_period > 1 && std::isfinite(c.max_period))) {
    refuse(fmt::format("max_period is {}", c.max_period), "choose a value above 1, such as 10000");
  }
  check_levels(c);
  check_size(c);
  check_groups(c);
  check_attention(c);
}

}  // namespace difuse::models
