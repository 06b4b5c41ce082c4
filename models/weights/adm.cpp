#include "models/weights/adm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "ir/error.h"

namespace difuse::models {
namespace {

/// A place that a number can be read from, which is the size there over `times`.
struct Place {
  std::string name;
  size_t axis = 0, rank = 1;
  int64_t times = 1;
};

/// Every number is read from the first of several tensors that has it: one that is missing or of another shape is for
/// the list of all of them to tell.
class Inference {
 public:
  explicit Inference(const FileTensors& tensors) : tensors_(tensors) {}

  UNetConfig run(std::set<std::string>& unknown) {
    UNetConfig c;
    c.model_channels = first_of({{"time_embed.0.weight", 1, 2},
                                 {"time_embed.0.weight", 0, 2, 4},
                                 {"time_embed.0.bias", 0, 1, 4},
                                 {"time_embed.2.bias", 0, 1, 4}});
    infer_channels(c, find_first({{"input_blocks.0.0.weight", 1, 4}}),
                   find_first({{"out.2.weight", 0, 4}, {"out.2.bias"}}), unknown);
    c.num_classes = find_first({{"label_emb.weight", 0, 2}}).value_or(0);
    read_levels(c, unknown);
    read_scale_shift(c, unknown);
    c.middle_attention = has_any("middle_block.1.qkv.");
    unknown.insert({"image_height", "image_width", "groups", "norm_eps", "dropout", "max_period", "freq_shift",
                    "cosines_first", "downsample_padding"});
    if (c.conditioning_channels > 0) unknown.insert("low_res_factor");
    if (c.middle_attention || !c.attention_resolutions.empty()) {
      unknown.insert({"num_heads", "num_head_channels", "qkv_order"});
    }
    return c;
  }

 private:
  bool has_any(const std::string& prefix) const {
    const auto at = tensors_.lower_bound(prefix);
    return at != tensors_.end() && at->first.starts_with(prefix);
  }

  std::optional<int64_t> find_first(const std::vector<Place>& places) const {
    for (const Place& place : places) {
      const auto found = tensors_.find(place.name);
      if (found == tensors_.end() || found->second.shape.size() != place.rank) continue;
      const int64_t size = found->second.shape[place.axis];
      if (size >= place.times && size % place.times == 0) return size / place.times;
    }
    return std::nullopt;
  }

  int64_t first_of(const std::vector<Place>& places) const {
    if (const auto found = find_first(places)) return *found;
    const auto shown = tensors_.find(places.front().name);
    throw Error(
        fmt::format("the weights are not those of a UNet of guided-diffusion: {} '{}'",
                    shown == tensors_.end() ? "there is no tensor"
                                            : fmt::format("[{}] is no shape of", fmt::join(shown->second.shape, ", ")),
                    places.front().name),
        "give the weights of the UNet itself, not of a classifier or of another model");
  }

  /// Of a residual block; its convolutions are image to image, or its width stands in the biases.
  int64_t width_of(const std::string& block) const {
    return first_of({{block + ".out_layers.3.weight", 0, 4},
                     {block + ".out_layers.3.bias"},
                     {block + ".in_layers.2.weight", 0, 4},
                     {block + ".in_layers.2.bias"},
                     {block + ".out_layers.0.weight"}});
  }

  void read_scale_shift(UNetConfig& c, std::set<std::string>& unknown) const {
    for (const auto& [name, tensor] : tensors_) {
      constexpr std::string_view kEnd = ".emb_layers.1.bias";
      if (!name.ends_with(kEnd) || tensor.shape.size() != 1) continue;
      const std::string block = name.substr(0, name.size() - kEnd.size());
      const auto width = find_first({{block + ".out_layers.3.weight", 0, 4}, {block + ".out_layers.3.bias"}});
      if (!width || (tensor.shape[0] != *width && tensor.shape[0] != 2 * *width)) continue;
      c.use_scale_shift_norm = tensor.shape[0] == 2 * *width;
      return;
    }
    unknown.insert("use_scale_shift_norm");
  }

  void read_levels(UNetConfig& c, std::set<std::string>& unknown) const {
    int64_t decoder = 0;  // Blocks.
    while (has_any(fmt::format("output_blocks.{}.0.", decoder))) ++decoder;
    // The block that ends a level of the decoder leads to the next, or there is a gap in the encoder where nothing is
    // learned.
    int64_t in_level = 0;
    Resampling how = Resampling::convolution;
    for (int64_t block = 0; block < decoder && in_level == 0; ++block) {
      for (const int part : {1, 2}) {
        if (has_any(fmt::format("output_blocks.{}.{}.conv.", block, part))) in_level = block + 1;
        if (has_any(fmt::format("output_blocks.{}.{}.in_layers.", block, part))) {
          in_level = block + 1;
          how = Resampling::residual;
        }
      }
    }
    for (int64_t block = 1; block < decoder && in_level == 0; ++block) {
      if (has_any(fmt::format("input_blocks.{}.0.", block))) continue;
      in_level = block;
      how = Resampling::plain;
    }
    if (in_level == 0) {
      in_level = decoder;
      unknown.insert({"conv_resample", "resblock_updown"});
    }
    if (in_level < 2 || decoder % in_level != 0) {
      throw Error(fmt::format("the weights are not those of a UNet of guided-diffusion: {} decoder blocks in levels of "
                              "{}",
                              decoder, in_level),
                  "give the weights of the UNet itself, not of a classifier or of another model");
    }
    c.num_res_blocks = in_level - 1;
    c.conv_resample = how != Resampling::plain;
    c.resblock_updown = how == Resampling::residual;
    c.channel_mult.clear();
    for (int64_t level = 0; level < decoder / in_level; ++level) {
      const int64_t block = 1 + level * in_level;
      const int64_t width = width_of(fmt::format("input_blocks.{}.0", block));
      c.channel_mult.push_back(static_cast<double>(width) / static_cast<double>(c.model_channels));
      if (has_any(fmt::format("input_blocks.{}.1.qkv.", block))) {
        c.attention_resolutions.push_back(int64_t{1} << level);
      }
    }
  }

  const FileTensors& tensors_;
};

}  // namespace

void infer_channels(UNetConfig& config, std::optional<int64_t> in, std::optional<int64_t> out,
                    std::set<std::string>& unknown) {
  if (!in || !out) {
    unknown.insert({"image_channels", "conditioning_channels", "learn_sigma", "low_res_factor"});
    return;
  }
  config.image_channels = std::min(*in, *out);
  if (in == out && (in == 2 || in == 6 || in == 8)) config.image_channels = *in / 2;
  settle_channels(config, *in, *out);
}

void settle_channels(UNetConfig& config, int64_t in, int64_t out) {
  config.conditioning_channels = in - config.image_channels;
  config.learn_sigma = out == 2 * config.image_channels;
}

UNetConfig infer_adm_config(const FileTensors& tensors, std::set<std::string>& unknown) {
  return Inference(tensors).run(unknown);
}

}  // namespace difuse::models
