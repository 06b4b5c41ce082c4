// Checkpoints: one safetensors file with everything that a run is made of.
//
// A run's folder holds
//   checkpoint.safetensors                  the latest state
//   checkpoints/step_00001000.safetensors   with --keep-last K, the K newest, that of `checkpoint.safetensors` among
//   them
// Each is a file of its own and complete in itself: renaming, moving or overwriting one changes no other.
//
// Tensors: every state of the training graph but those of a step under way (is_within_step), which are zero between
// steps. A state that is a flat vector of parameters is stored parameter by parameter, without the gaps between slices:
// "params/<name>", "adam_m/<name>", "adam_v/<name>", "ema/<name>"; the others under their own names ("step" i32 [],
// "seed" u32 [2]). "loader.position" u64 [] is the place in the sequence of training images. Metadata: "difuse.format"
// (the version of all this), "difuse.crc32" (zlib's, of all tensors' bytes in the order of the file, 8 hexadecimal
// digits; files of before there was one are read without) and JSON texts "difuse.run", "difuse.model",
// "difuse.diffusion", "difuse.training".
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "models/diffusion/diffusion_config.h"
#include "models/parameters.h"
#include "models/training_step.h"
#include "models/unet_config.h"
#include "runtime/data/image/fit.h"
#include "runtime/data/loader.h"
#include "runtime/safetensors.h"

namespace difuse::models {

/// What a run needs beside the model and the mathematics.
struct RunSettings {
  std::string model;         ///< The preset's name, or the name of the file that describes it.
  uint64_t seed = 0;         ///< Of everything random.
  bool flip = false;         ///< Mirror images at random.
  int64_t images = 0;        ///< How many the data has: the order of images depends on it.
  uint64_t fingerprint = 0;  ///< Of its pixels and labels; 0: not known.
  std::string version;       ///< Of difuse, when the run began.

  // How the data became images of the model's size.
  runtime::Crop crop = runtime::Crop::center;
  bool skip_bad_images = false;
  bool class_from_folder = false;
  std::vector<std::string> class_names = {};  ///< Of label 0, 1, ...; empty where the data names none.
  std::string dtype = {};                     ///< How exactly the run computes; empty in files of before it was kept.

  template <class Visitor>
  void visit(Visitor&& v) {
    v("model", model), v("seed", seed), v("flip", flip), v("images", images), v("version", version), v("crop", crop);
    v("skip_bad_images", skip_bad_images), v("class_from_folder", class_from_folder), v("class_names", class_names);
    v("fingerprint", fingerprint), v("dtype", dtype);
  }
  static constexpr bool may_be_missing(std::string_view name) { return name == "dtype"; }
};

/// Everything that decides the numbers of a run.
struct RunConfig {
  RunSettings run;
  UNetConfig unet;
  DiffusionConfig diffusion;
  TrainingConfig training;
};

struct StateValue {
  ir::Type type;
  std::vector<std::byte> bytes;
};
/// By name, as the graph holds them.
using StateValues = std::map<std::string, StateValue, std::less<>>;

/// Bytes of a checkpoint of these states, header included (rounded up).
uint64_t checkpoint_bytes(const ir::Graph& graph, const RunConfig& config, const ParameterLayout& layout);

/// How many checkpoints the folder will hold, at most and on top of those that are there, while a run calls save_run
/// `saves` times: each is written beside what it replaces.
int64_t checkpoints_to_come(const std::filesystem::path& folder, int64_t saves, int64_t keep_last);

/// Replaces the file in one step; when that fails, the old one stays. `states` are those after a whole step: a step
/// under way is an Error, and so are parameters or averages that are not finite.
void save_checkpoint(const std::filesystem::path& path, const RunConfig& config, const ParameterLayout& layout,
                     const StateValues& states, runtime::Cursor cursor);

/// Saves `folder`/checkpoint.safetensors and, when `keep_last` > 0, its numbered twin, then removes the oldest numbered
/// files up to this step beyond `keep_last`.
void save_run(const std::filesystem::path& folder, const RunConfig& config, const ParameterLayout& layout,
              const StateValues& states, runtime::Cursor cursor, int64_t step, int64_t keep_last);

/// Removes temporary files that a killed run left in its folder: those of its own names alone. Call it only while no
/// other run can be writing there.
void remove_leftovers(const std::filesystem::path& folder);

/// The file that `path` stands for: itself, or the latest checkpoint in that folder. Error when the folder has none or
/// there is nothing at `path`; `flag` names where the path came from.
std::filesystem::path find_checkpoint(const std::filesystem::path& path, std::string_view flag);
/// Whether the folder holds a checkpoint of an earlier run.
bool holds_checkpoint(const std::filesystem::path& folder);

/// SafetensorsReader of a file that may be a checkpoint. The remedy of an Error of a broken one is the newest of the
/// other numbered checkpoints of its run, where there is one.
runtime::SafetensorsReader open_checkpoint_file(const std::filesystem::path& path);

/// An open checkpoint. Header, configuration and checksum are checked by the constructor, which reads the whole file;
/// names, shapes and values of tensors when they are read.
class Checkpoint {
 public:
  /// Errors: what open_checkpoint_file() says; a safetensors file that difuse did not write; another format version; a
  /// configuration that cannot be read; tensors that are not those that were written, a step or a place in the data
  /// that cannot be, with the remedy of open_checkpoint_file().
  explicit Checkpoint(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return reader_.path(); }
  const RunConfig& config() const { return config_; }
  /// Steps finished.
  int64_t step() const;
  runtime::Cursor cursor() const;
  const runtime::SafetensorsReader& file() const { return reader_; }

  /// The values of all states of `graph`, zero for those of a step under way. Error naming the tensor that is missing,
  /// has another shape or dtype, or belongs to no state, and the parameter or average that is not finite.
  StateValues states(const ir::Graph& graph, const ParameterLayout& layout) const;
  /// The flat vector of one set, "params" or "ema"; the Errors of states(), for that set.
  std::vector<float> parameters(std::string_view set, const ParameterLayout& layout) const;

 private:
  std::vector<std::byte> packed(std::string_view set, const ParameterLayout& layout) const;
  const runtime::TensorInfo& find(const std::string& name, runtime::TensorDType dtype, const ir::Shape& shape) const;
  void check_integrity() const;

  runtime::SafetensorsReader reader_;
  RunConfig config_;
};

}  // namespace difuse::models
