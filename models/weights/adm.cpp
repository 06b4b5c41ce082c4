#include "models/weights/adm.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/error.h"

namespace difuse::models {
namespace {

class Inference {
 public:
  explicit Inference(const FileTensors& tensors) : tensors_(tensors) {}

  UNetConfig run(std::set<std::string>& unknown) {
    UNetConfig c;
    c.model_channels = size("time_embed.0.weight", 1);
    const int64_t in = size("input_blocks.0.0.weight", 1), out = size("out.2.weight", 0);
    infer_channels(c, in, out);
    if (has("label_emb.weight")) c.num_classes = size("label_emb.weight", 0);
    read_levels(c, unknown);
    c.use_scale_shift_norm =
        size("input_blocks.1.0.emb_layers.1.weight", 0) == 2 * size("input_blocks.1.0.out_layers.3.weight", 0);
    c.middle_attention = has("middle_block.1.qkv.weight");
    unknown.insert({"image_height", "image_width", "groups", "norm_eps", "dropout", "max_period", "freq_shift",
                    "cosines_first", "downsample_padding"});
    if (c.conditioning_channels > 0) unknown.insert("low_res_factor");
    if (c.middle_attention || !c.attention_resolutions.empty()) {
      unknown.insert({"num_heads", "num_head_channels", "qkv_order"});
    }
    return c;
  }

 private:
  bool has(const std::string& name) const { return tensors_.contains(name); }

  int64_t size(const std::string& name, size_t axis) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end() || axis >= found->second.shape.size() || found->second.shape[axis] < 1) {
      throw Error(fmt::format("the weights are not those of a UNet of guided-diffusion: there is no {} tensor '{}'",
                              found == tensors_.end() ? "" : "such", name),
                  "give the weights of the UNet itself, not of a classifier or of another model");
    }
    return found->second.shape[axis];
  }

  void read_levels(UNetConfig& c, std::set<std::string>& unknown) const {
    int64_t decoder = 0;  // Blocks.
    while (has(fmt::format("output_blocks.{}.0.in_layers.0.weight", decoder))) ++decoder;
    // The block that ends a level of the decoder leads to the next, or there is a gap in the encoder where nothing is
    // learned.
    int64_t in_level = 0;
    Resampling how = Resampling::convolution;
    for (int64_t block = 0; block < decoder && in_level == 0; ++block) {
      for (const int part : {1, 2}) {
        if (has(fmt::format("output_blocks.{}.{}.conv.weight", block, part))) in_level = block + 1;
        if (has(fmt::format("output_blocks.{}.{}.in_layers.0.weight", block, part))) {
          in_level = block + 1;
          how = Resampling::residual;
        }
      }
    }
    for (int64_t block = 1; block < decoder && in_level == 0; ++block) {
      if (has(fmt::format("input_blocks.{}.0.in_layers.0.weight", block))) continue;
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
      const int64_t width = size(fmt::format("input_blocks.{}.0.out_layers.3.weight", block), 0);
      c.channel_mult.push_back(static_cast<double>(width) / static_cast<double>(c.model_channels));
      if (has(fmt::format("input_blocks.{}.1.qkv.weight", block))) {
        c.attention_resolutions.push_back(int64_t{1} << level);
      }
    }
  }

  const FileTensors& tensors_;
};

}  // namespace

void infer_channels(UNetConfig& config, int64_t in, int64_t out) {
  config.image_channels = std::min(in, out);
  if (in == out && (in == 2 || in == 6 || in == 8)) config.image_channels = in / 2;
  config.conditioning_channels = in - config.image_channels;
  config.learn_sigma = out == 2 * config.image_channels;
}

UNetConfig infer_adm_config(const FileTensors& tensors, std::set<std::string>& unknown) {
  return Inference(tensors).run(unknown);
}

}  // namespace difuse::models
