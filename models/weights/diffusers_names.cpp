#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "ir/error.h"
#include "models/weights/diffusers.h"

namespace difuse::models {
namespace {

/// A block of ours, "input_blocks.3" or "middle_block", and where it is in UNet2DModel.
struct BlockPlace {
  std::string container;  ///< "down_blocks.1"
  int64_t index = 0;      ///< Of the residual block and its attention.
  bool between = false;   ///< It leads to the next level.
};

constexpr std::array<std::array<std::string_view, 2>, 6> kResidual = {{{"in_layers.0", "norm1"},
                                                                       {"in_layers.2", "conv1"},
                                                                       {"emb_layers.1", "time_emb_proj"},
                                                                       {"out_layers.0", "norm2"},
                                                                       {"out_layers.3", "conv2"},
                                                                       {"skip_connection", "conv_shortcut"}}};
constexpr std::array<std::array<std::string_view, 2>, 7> kOutside = {{{"time_embed.0", "time_embedding.linear_1"},
                                                                      {"time_embed.2", "time_embedding.linear_2"},
                                                                      {"label_emb", "class_embedding"},
                                                                      {"input_blocks.0.0", "conv_in"},
                                                                      {"out.0", "conv_norm_out"},
                                                                      {"out.2", "conv_out"},
                                                                      {"", ""}}};

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('.', begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

BlockPlace place_of(const UNetConfig& config, const std::string& list, int64_t block) {
  const int64_t in_level = config.num_res_blocks + 1;
  if (list == "input_blocks") {  // The first is the input's convolution.
    const int64_t level = (block - 1) / in_level, index = (block - 1) % in_level;
    return {fmt::format("down_blocks.{}", level), index, index == config.num_res_blocks};
  }
  return {fmt::format("up_blocks.{}", block / in_level), block % in_level, false};
}

}  // namespace

std::vector<std::vector<std::string>> diffusers_names(const UNetConfig& config, std::string_view name) {
  const size_t dot = name.rfind('.');
  const std::string_view stem = name.substr(0, dot), ending = name.substr(dot);  // ".weight" or ".bias"
  for (const auto& [ours, theirs] : kOutside) {
    if (stem == ours) return {{fmt::format("{}{}", theirs, ending)}};
  }
  const std::vector<std::string> parts = split(stem);
  int64_t number = 0;
  std::from_chars(parts[1].data(), parts[1].data() + parts[1].size(), number);
  BlockPlace place{"mid_block", number / 2, false};  // Residual, attention, residual.
  size_t used = 2;
  if (parts[0] != "middle_block") {
    place = place_of(config, parts[0], number);
    ++used;  // The part's number in its block.
  }
  std::string rest;
  for (size_t i = used; i < parts.size(); ++i) rest += (rest.empty() ? "" : ".") + parts[i];
  const std::string attention = fmt::format("{}.attentions.{}", place.container, place.index);
  const auto names = [&](std::initializer_list<std::string_view> layers) {
    std::vector<std::string> result;
    for (const std::string_view layer : layers) result.push_back(fmt::format("{}.{}{}", attention, layer, ending));
    return result;
  };
  if (rest == "norm") return {names({"group_norm"})};
  if (rest == "qkv") return {names({"to_q", "to_k", "to_v"}), names({"query", "key", "value"})};
  if (rest == "proj_out") return {names({"to_out.0"}), names({"proj_attn"})};
  if (rest == "op") return {{fmt::format("{}.downsamplers.0.conv{}", place.container, ending)}};
  if (rest == "conv") return {{fmt::format("{}.upsamplers.0.conv{}", place.container, ending)}};
  for (const auto& [ours, theirs] : kResidual) {
    if (rest != ours) continue;
    // A decoder's block of more than one part ends in the way up; its first part is the block itself.
    const bool up = parts[0] == "output_blocks" && parts[2] != "0";
    const std::string block = place.between ? "downsamplers.0"
                              : up          ? "upsamplers.0"
                                            : fmt::format("resnets.{}", place.index);
    return {{fmt::format("{}.{}.{}{}", place.container, block, theirs, ending)}};
  }
  throw Error(fmt::format("UNet2DModel has no counterpart of the parameter '{}'", name));
}

}  // namespace difuse::models
