// A trained model from whatever file holds one: a checkpoint of difuse, or weights of another program.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/checkpoint.h"
#include "models/parameters.h"
#include "models/weights/tensor_file.h"
#include "models/weights/unet_cu.h"

namespace difuse::models {

/// What the user says about a file that does not say it itself.
struct WeightsOptions {
  std::optional<std::string> model;             ///< A preset.
  std::optional<std::filesystem::path> config;  ///< A TOML file.
  /// Take the tensors that fit; the others start as in training. Otherwise one that is missing, left over or of another
  /// shape is an Error.
  bool allow_partial = false;
};

/// Whether a file is safetensors that difuse wrote. Errors of SafetensorsReader for a file of no kind that is known.
bool is_difuse_checkpoint(const std::filesystem::path& path);

class TrainedModel {
 public:
  /// `path` is a checkpoint or a run's folder, a .pt file (guided-diffusion's or unet.cu's names), a safetensors file
  /// with such names, a diffusers folder, or a weights file of unet.cu. `flag` names where the path came from. Errors:
  /// those of the readers; a configuration that the file and the options leave open; options that contradict the file.
  static TrainedModel open(const std::filesystem::path& path, std::string_view flag, const WeightsOptions& options);

  const std::filesystem::path& path() const { return path_; }
  const RunConfig& config() const { return config_; }
  /// Steps of training, where the file says it; 0 otherwise.
  int64_t step() const { return checkpoint_ ? checkpoint_->step() : 0; }
  /// Whether it is a checkpoint of difuse.
  bool is_checkpoint() const { return checkpoint_ != nullptr; }
  /// "raw" first, then the averages "ema", "ema_1", ...
  std::vector<std::string> weight_names() const;
  /// "ema" where there is one, "raw" otherwise.
  std::string default_weights() const;
  /// What it was taken for, as lines for the user; empty for a checkpoint.
  const std::vector<std::string>& notes() const { return notes_; }

  /// The flat vector of `layout`. Error listing every tensor that is missing, left over or of another shape, with the
  /// likely cause, and the one that is not finite; with allow_partial `report` gets the list instead, of a checkpoint
  /// as of any file.
  std::vector<float> parameters(std::string_view weights, const ParameterLayout& layout,
                                std::vector<std::string>* report = nullptr) const;

 private:
  enum class Dialect : uint8_t { difuse, adm, unet_cu, diffusers };

  TrainedModel() = default;
  void open_foreign(const WeightsOptions& options);
  std::vector<std::vector<std::string>> file_names(std::string_view parameter) const;
  /// Of one set of a checkpoint, without its prefix.
  FileTensors checkpoint_tensors(std::string_view set) const;
  const FileTensors& tensors() const { return bin_ ? bin_->tensors() : file_->tensors(); }

  std::filesystem::path path_;
  RunConfig config_;
  Dialect dialect_ = Dialect::difuse;
  bool allow_partial_ = false;
  std::vector<std::string> notes_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<TensorFile> file_;
  std::unique_ptr<UnetCuWeights> bin_;
};

}  // namespace difuse::models
