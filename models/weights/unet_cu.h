// The binary files of unet.cu (https://github.com/clu0/unet.cu, train_unet.cu and prepare_data.py): a header of 256
// little-endian i32 numbers, then f32 values.
//
// Weights: magic, batch, image channels, model channels, output channels, height, width, longest period of the time
// embedding, whether AdamW's moments follow, whether random states follow. The parameters lie one behind the other in
// the order of the forward, convolutions as [Cout, Cin, R, S]. The rest of the model is fixed: levels 1-2-3-4, two
// blocks each, attention of 32-channel heads at a quarter and an eighth, parameter-free resampling, 32 groups.
//
// Data are read by runtime/data/unet_cu_data.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "models/parameters.h"
#include "models/unet_config.h"
#include "models/weights/tensor_file.h"
#include "runtime/mapped_file.h"

namespace difuse::models {

inline constexpr int32_t kUnetCuWeights = 12345678, kUnetCuData = 20240620;

class UnetCuWeights {
 public:
  /// Errors: a header that is cut off or describes no model; fewer values than the model has, or others than a whole
  /// number of copies of them (truncated).
  explicit UnetCuWeights(const std::filesystem::path& path);

  const UNetConfig& config() const { return config_; }
  /// By the names of unet.cu's own module. They live as long as this.
  const FileTensors& tensors() const { return tensors_; }

 private:
  runtime::MappedFile file_;
  UNetConfig config_;
  FileTensors tensors_;
};

/// The name that unet.cu's PyTorch module has for a parameter of ours.
std::string unet_cu_name(std::string_view name);
std::string name_from_unet_cu(std::string_view name);

}  // namespace difuse::models
