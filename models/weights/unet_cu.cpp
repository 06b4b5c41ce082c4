#include "models/weights/unet_cu.h"

#include <fmt/format.h>

#include <array>
#include <cstring>

#include "ir/error.h"
#include "models/presets.h"
#include "models/unet.h"
#include "models/weights/tensor_layout.h"

namespace difuse::models {
namespace {

constexpr size_t kHeaderWords = 256;

struct Replacement {
  std::string_view ours, theirs;
};

constexpr std::array kNames = {
    Replacement{".in_layers.0.", ".gn1."},    Replacement{".in_layers.2.", ".cv3_1."},
    Replacement{".emb_layers.1.", ".l_emb."}, Replacement{".out_layers.0.", ".gn2."},
    Replacement{".out_layers.3.", ".cv3_2."}, Replacement{".norm.", ".gn."},
    Replacement{".proj_out.", ".proj."},
};

std::string renamed(std::string_view name, std::string_view Replacement::*from, std::string_view Replacement::*to) {
  std::string result(name);
  for (const Replacement& row : kNames) {
    if (const size_t at = result.find(row.*from); at != std::string::npos) {
      return result.replace(at, (row.*from).size(), row.*to);
    }
  }
  return result;
}

/// What the header says, in the model that is fixed otherwise.
UNetConfig config_of(const std::filesystem::path& path, const std::array<int32_t, kHeaderWords>& header) {
  UNetConfig config = find_preset("unet-cu64").unet;
  config.image_channels = header[2];
  config.model_channels = header[3];
  config.learn_sigma = header[4] == 2 * int64_t{header[2]};
  config.image_height = header[5];
  config.image_width = header[6];
  config.max_period = header[7];
  try {
    check(config);
  } catch (const Error& error) {
    throw Error(fmt::format("'{}' has a header of no model of unet.cu: {}", path.string(), error.what()),
                "give a weights file that unet.cu wrote");
  }
  if (config.out_channels() != header[4]) {
    throw Error(fmt::format("'{}' has a header of no model of unet.cu: {} channels in, {} out", path.string(),
                            header[2], header[4]),
                "give a weights file that unet.cu wrote");
  }
  return config;
}

}  // namespace

std::string unet_cu_name(std::string_view name) { return renamed(name, &Replacement::ours, &Replacement::theirs); }

std::string name_from_unet_cu(std::string_view name) { return renamed(name, &Replacement::theirs, &Replacement::ours); }

UnetCuWeights::UnetCuWeights(const std::filesystem::path& path) : file_(path) {
  const std::span<const std::byte> bytes = file_.bytes();
  std::array<int32_t, kHeaderWords> header{};
  if (bytes.size() < sizeof header) {
    throw Error(fmt::format("'{}' is truncated: {} bytes, fewer than its header of {}", path.string(), bytes.size(),
                            sizeof header),
                "copy or download the file again");
  }
  std::memcpy(header.data(), bytes.data(), sizeof header);
  config_ = config_of(path, header);

  const ParameterLayout layout = parameter_layout(config_);
  const bool moments = header[8] != 0, random_states = header[9] != 0;
  const uint64_t found = bytes.size() - sizeof header;
  const uint64_t needed = static_cast<uint64_t>(layout.parameters()) * sizeof(float) * (moments ? 3 : 1);
  if (found < needed || (found != needed && !random_states)) {
    throw Error(fmt::format("'{}' {}: its header needs {} bytes of values, {} are there", path.string(),
                            found < needed ? "is truncated" : "contradicts itself", needed, found),
                "copy or download the file again");
  }
  uint64_t at = sizeof header;
  for (size_t i = layout.specs().size(); i-- > 0;) {  // A layout is in the order of the backward.
    const ParameterSpec& spec = layout.specs()[i];
    const auto size = static_cast<uint64_t>(spec.elements()) * sizeof(float);
    tensors_[unet_cu_name(spec.name)] = {
        runtime::TensorDType::f32, file_shape(spec.shape), {}, bytes.subspan(at, size)};
    at += size;
  }
}

}  // namespace difuse::models
