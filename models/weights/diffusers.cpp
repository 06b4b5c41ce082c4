#include "models/weights/diffusers.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <system_error>

#include "ir/error.h"
#include "models/weights/json_keys.h"

namespace difuse::models {

namespace fs = std::filesystem;

namespace {

struct BlockType {
  std::string_view name;
  bool attention;
  bool residual;  ///< Resamples by a residual block, whatever downsample_type or upsample_type say.
};

constexpr std::array kDown = {BlockType{"DownBlock2D", false, false}, BlockType{"AttnDownBlock2D", true, false},
                              BlockType{"ResnetDownsampleBlock2D", false, true}};
constexpr std::array kUp = {BlockType{"UpBlock2D", false, false}, BlockType{"AttnUpBlock2D", true, false},
                            BlockType{"ResnetUpsampleBlock2D", false, true}};

template <size_t N>
const BlockType& block_type(const JsonKeys& keys, const std::string& key, const std::array<BlockType, N>& rows,
                            std::string name) {
  if (name.starts_with("UNetRes")) name.erase(0, 7);  // As the first versions called them.
  for (const BlockType& row : rows) {
    if (row.name == name) return row;
  }
  keys.refuse(key, fmt::format("has '{}', which is not supported", name));
}

Resampling resampling_of(const JsonKeys& keys, const std::string& key, const BlockType& block) {
  if (block.residual) return Resampling::residual;
  if (!block.attention) return Resampling::convolution;
  const std::string type = keys.get<std::string>(key, "conv");
  if (type != "conv" && type != "resnet") keys.refuse(key, "is not supported, only \"conv\" and \"resnet\" are");
  return type == "conv" ? Resampling::convolution : Resampling::residual;
}

/// The multiplier that gives exactly `width`, for all that it is rounded down.
double multiplier(int64_t width, int64_t base) {
  double value = static_cast<double>(width) / static_cast<double>(base);
  while (static_cast<int64_t>(static_cast<double>(base) * value) < width) value = std::nextafter(value, HUGE_VAL);
  return value;
}

void read_blocks(const JsonKeys& keys, UNetConfig& config) {
  const auto widths = keys.get<std::vector<int64_t>>("block_out_channels", {224, 448, 672, 896});
  const auto down = keys.get<std::vector<std::string>>(
      "down_block_types", {"DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"});
  const auto up = keys.get<std::vector<std::string>>("up_block_types",
                                                     {"AttnUpBlock2D", "AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"});
  const size_t levels = widths.size();
  if (levels == 0 || levels > 16 || widths[0] < 1) keys.refuse("block_out_channels", "is no list of widths");
  if (down.size() != levels) keys.refuse("down_block_types", fmt::format("has not {} entries", levels));
  if (up.size() != levels) keys.refuse("up_block_types", fmt::format("has not {} entries", levels));
  config.model_channels = widths[0];
  config.channel_mult.clear();
  config.decoder_attention_resolutions.clear();
  for (size_t level = 0; level < levels; ++level) {
    if (widths[level] < 1 || widths[level] > (1 << 16)) keys.refuse("block_out_channels", "is no list of widths");
    config.channel_mult.push_back(multiplier(widths[level], widths[0]));
    const BlockType& block = block_type(keys, "down_block_types", kDown, down[level]);
    if (block.attention) config.attention_resolutions.push_back(int64_t{1} << level);
    if (level + 1 < levels) config.encoder_resampling.push_back(resampling_of(keys, "downsample_type", block));
    const BlockType& back = block_type(keys, "up_block_types", kUp, up[levels - 1 - level]);
    if (back.attention) config.decoder_attention_resolutions.push_back(int64_t{1} << level);
    if (level > 0) config.decoder_resampling.push_back(resampling_of(keys, "upsample_type", back));
  }
  if (config.decoder_attention_resolutions == config.attention_resolutions) config.decoder_attention_resolutions = {0};
}

void read_size(const JsonKeys& keys, UNetConfig& config, std::set<std::string>& unknown) {
  if (keys.is_null("sample_size")) {
    unknown.insert({"image_height", "image_width"});
    return;
  }
  if (keys.is_array("sample_size")) {
    const auto size = keys.get<std::vector<int64_t>>("sample_size", {});
    if (size.size() != 2) keys.refuse("sample_size", "is no size");
    config.image_height = size[0], config.image_width = size[1];
  } else {
    config.image_height = config.image_width = keys.get<int64_t>("sample_size", 0);
  }
}

}  // namespace

fs::path find_diffusers_folder(const fs::path& path) {
  std::error_code ignored;
  const std::string name = path.filename();
  if (name == kDiffusersFile || name == std::string(kDiffusersFile) + ".index.json") {
    const fs::path folder = fs::absolute(path, ignored).parent_path();
    return fs::exists(path, ignored) && fs::exists(folder / "config.json", ignored) ? folder : fs::path();
  }
  if (!fs::is_directory(path, ignored)) return {};
  if (fs::exists(path / "config.json", ignored)) return path;
  if (fs::exists(path / "unet" / "config.json", ignored)) return path / "unet";
  return {};
}

UNetConfig read_diffusers_config(const fs::path& folder, const FileTensors& tensors, std::set<std::string>& unknown) {
  const fs::path path = folder / "config.json";
  const JsonKeys keys(path);
  keys.require<std::string>("_class_name", "UNet2DModel");
  keys.require<bool>("center_input_sample", false);
  keys.require<bool>("attention_legacy_order", false);
  keys.require<std::string>("time_embedding_type", "positional");
  keys.require<double>("mid_block_scale_factor", 1);
  if (const std::string act = keys.get<std::string>("act_fn", "silu"); act != "silu" && act != "swish") {
    keys.refuse("act_fn", "is not supported, only \"silu\" is");
  }
  if (!keys.is_null("class_embed_type")) keys.refuse("class_embed_type", "is not supported, only null is");

  UNetConfig config;
  read_size(keys, config, unknown);
  config.image_channels = keys.get<int64_t>("in_channels", 3);
  const int64_t out = keys.get<int64_t>("out_channels", 3);
  config.learn_sigma = out == 2 * config.image_channels;
  if (config.image_channels == 2 * out || config.image_channels == out + 3) {  // A second image beside the first.
    config.conditioning_channels = config.image_channels - out;
    config.image_channels = out;
    config.learn_sigma = false;
    if (keys.is_null("low_res_factor")) unknown.insert("low_res_factor");
    config.low_res_factor = keys.get<int64_t>("low_res_factor", config.low_res_factor);
  }
  if (config.out_channels() != out) keys.refuse("out_channels", "is neither the images' channels nor twice them");
  read_blocks(keys, config);
  config.num_res_blocks = keys.get<int64_t>("layers_per_block", 2);
  config.downsample_padding = keys.get<int64_t>("downsample_padding", 1);
  config.freq_shift = keys.get<double>("freq_shift", 0);
  config.cosines_first = keys.get<bool>("flip_sin_to_cos", true);
  config.dropout = keys.get<double>("dropout", 0);
  config.groups = keys.get<int64_t>("norm_num_groups", 32);
  config.norm_eps = keys.get<double>("norm_eps", 1e-5);
  config.num_classes = keys.get<int64_t>("num_class_embeds", 0);
  config.middle_attention = keys.get<bool>("add_attention", true);
  config.qkv_order = ir::QkvOrder::qkv_first;
  // Left out it is 8, null is one head.
  config.num_head_channels = keys.contains("attention_head_dim") ? keys.get<int64_t>("attention_head_dim", 0) : 8;
  const std::string shift = keys.get<std::string>("resnet_time_scale_shift", "default");
  if (shift != "default" && shift != "scale_shift") keys.refuse("resnet_time_scale_shift", "is not supported");
  config.use_scale_shift_norm = shift == "scale_shift";
  if (keys.get<int64_t>("attn_norm_num_groups", config.groups) != config.groups) {
    keys.refuse("attn_norm_num_groups", "differs from norm_num_groups, which is not supported");
  }
  config.middle_attention_norm =
      !config.middle_attention || tensors.contains("mid_block.attentions.0.group_norm.weight");
  try {
    if (unknown.empty()) check(config);
  } catch (const Error& error) {
    throw Error(fmt::format("'{}': {}", path.string(), error.what()), error.remedy());
  }
  return config;
}

nlohmann::ordered_json diffusers_config(const UNetConfig& c) {
  const auto refuse = [](const std::string& what) {
    throw Error(fmt::format("diffusers' UNet2DModel has no {}", what),
                "choose another --format: difuse keeps everything, safetensors has guided-diffusion's names",
                ExitCode::wrong_usage);
  };
  if (c.family != UNetFamily::residual) refuse("model of the family 'strided'");
  if (c.learn_sigma && c.conditioning_channels > 0) refuse("learned variance beside a second image");
  if (c.width(0) != c.model_channels) refuse("time embedding of another width than the first level's");
  if (c.max_period != 10000) refuse(fmt::format("max_period of {}", c.max_period));
  if (c.freq_shift != std::floor(c.freq_shift)) refuse(fmt::format("freq_shift of {}", c.freq_shift));
  int64_t head = 0;  // Channels of a head, the same at each attention.
  std::vector<int64_t> widths;
  std::vector<std::string> down, up;
  std::set<Resampling> attended_down, attended_up;
  for (int64_t level = 0; level < c.levels(); ++level) {
    widths.push_back(c.width(level));
    const bool last = level + 1 == c.levels();
    if (c.attention_at(level) || c.decoder_attention_at(level) || (last && c.middle_attention)) {
      const int64_t channels = c.width(level) / c.heads(c.width(level));
      if (c.num_head_channels == 0 && c.num_heads > 1 && head != 0 && head != channels) {
        refuse("equal number of heads at levels of different width");
      }
      head = channels;
    }
    const auto resampling = [&](Resampling how, bool attention, std::set<Resampling>& attended, const char* plain,
                                const char* attending, const char* residual) -> std::string {
      if (how == Resampling::plain) refuse("parameter-free resampling");
      if (attention) attended.insert(how);
      if (attention) return attending;
      return how == Resampling::residual ? residual : plain;
    };
    const Resampling leave = last ? Resampling::convolution : c.downsampling(level);
    const Resampling back = level == 0 ? Resampling::convolution : c.upsampling(level - 1);
    std::set<Resampling> ignored;
    down.push_back(resampling(leave, c.attention_at(level), last ? ignored : attended_down, "DownBlock2D",
                              "AttnDownBlock2D", "ResnetDownsampleBlock2D"));
    up.insert(up.begin(), resampling(back, c.decoder_attention_at(level), level == 0 ? ignored : attended_up,
                                     "UpBlock2D", "AttnUpBlock2D", "ResnetUpsampleBlock2D"));
  }
  if (attended_down.size() > 1 || attended_up.size() > 1) refuse("two kinds of resampling at levels with attention");
  const auto type_of = [](const std::set<Resampling>& kinds) {
    return kinds.contains(Resampling::residual) ? "resnet" : "conv";
  };
  const bool one_head = c.num_head_channels == 0 && c.num_heads == 1;
  const auto or_null = [](bool there, int64_t value) {
    return there ? nlohmann::ordered_json(value) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json object;
  object["_class_name"] = "UNet2DModel";
  object["_diffusers_version"] = "0.30.0";
  object["act_fn"] = "silu";
  object["add_attention"] = c.middle_attention;
  object["attention_head_dim"] = or_null(!one_head && head > 0, head);
  object["attn_norm_num_groups"] = or_null(c.middle_attention && c.middle_attention_norm, c.groups);
  object["block_out_channels"] = widths;
  object["center_input_sample"] = false;
  object["class_embed_type"] = nullptr;
  object["down_block_types"] = down;
  object["downsample_padding"] = c.downsample_padding;
  object["downsample_type"] = type_of(attended_down);
  object["dropout"] = c.dropout;
  object["flip_sin_to_cos"] = c.cosines_first;
  object["freq_shift"] = static_cast<int64_t>(c.freq_shift);
  object["in_channels"] = c.input_channels();
  object["layers_per_block"] = c.num_res_blocks;
  // Of difuse alone: diffusers warns of a key that it does not know, and goes on.
  if (c.conditioning_channels > 0) object["low_res_factor"] = c.low_res_factor;
  object["mid_block_scale_factor"] = 1;
  object["norm_eps"] = c.norm_eps;
  object["norm_num_groups"] = c.groups;
  object["num_class_embeds"] = or_null(c.num_classes > 0, c.num_classes);
  object["num_train_timesteps"] = nullptr;
  object["out_channels"] = c.out_channels();
  object["resnet_time_scale_shift"] = c.use_scale_shift_norm ? "scale_shift" : "default";
  if (c.image_height == c.image_width) {
    object["sample_size"] = c.image_height;
  } else {
    object["sample_size"] = {c.image_height, c.image_width};
  }
  object["time_embedding_type"] = "positional";
  object["up_block_types"] = up;
  object["upsample_type"] = type_of(attended_up);
  return object;
}

}  // namespace difuse::models
