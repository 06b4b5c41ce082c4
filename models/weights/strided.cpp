#include "models/weights/strided.h"

#include <fmt/format.h>

#include "ir/error.h"
#include "models/weights/adm.h"

namespace difuse::models {

UNetConfig infer_strided_config(const FileTensors& tensors, std::set<std::string>& unknown) {
  const auto count = [&](const char* name) {
    int64_t layers = 0;
    while (tensors.contains(fmt::format("{}.{}.weight", name, layers))) ++layers;
    return layers;
  };
  const auto size = [&](const std::string& name, size_t axis) {
    const auto found = tensors.find(name);
    if (found != tensors.end() && found->second.shape.size() == 4 && found->second.shape[axis] > 0) {
      return found->second.shape[axis];
    }
    throw Error(fmt::format("the weights are not those of a strided UNet: there is no such tensor '{}'", name),
                "give the weights of the UNet itself");
  };
  UNetConfig c;
  c.family = UNetFamily::strided;
  c.model_channels = size("down.0.weight", 0);
  c.channel_mult.clear();
  const int64_t levels = count("down");
  for (int64_t level = 0; level < levels; ++level) {
    const int64_t width = size(fmt::format("down.{}.weight", level), 0);
    c.channel_mult.push_back(static_cast<double>(width) / static_cast<double>(c.model_channels));
  }
  c.num_res_blocks = count("middle");
  const int64_t in = size("down.0.weight", 1) - 1, out = size(fmt::format("up.{}.weight", levels - 1), 1);
  infer_channels(c, in, out, unknown);
  unknown.insert({"image_height", "image_width", "groups", "norm_eps", "max_period", "freq_shift", "cosines_first",
                  "downsample_padding", "num_heads", "num_head_channels", "qkv_order", "middle_attention",
                  "middle_attention_norm", "conv_resample"});
  if (c.conditioning_channels > 0) unknown.insert("low_res_factor");
  return c;
}

}  // namespace difuse::models
