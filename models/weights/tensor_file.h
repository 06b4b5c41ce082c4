// Named tensors in whatever file they came, without a meaning yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/mapped_file.h"
#include "runtime/safetensors.h"

namespace difuse::models {

/// A tensor in a file. Row-major unless it has strides.
struct FileTensor {
  runtime::TensorDType dtype = runtime::TensorDType::f32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;      ///< In elements; empty: row-major.
  std::span<const std::byte> bytes;  ///< From the first element to the last.

  int64_t elements() const;
};

/// The values as f32, row-major. Error when the dtype is no number that f32 can stand for.
std::vector<float> to_f32(const FileTensor& tensor, std::string_view name);

using FileTensors = std::map<std::string, FileTensor, std::less<>>;

/// One file, or several that belong together, with their tensors. Nothing of a tensor is read before it is asked for.
class TensorFile {
 public:
  /// A .pt archive of torch.save (PyTorch 1.6 and later), or safetensors: whichever it is. Errors: those of
  /// SafetensorsReader, ZipArchive and Pickle; an archive without data.pkl; a tensor that leaves its storage; a file in
  /// PyTorch's older format.
  static TensorFile open(const std::filesystem::path& path);

  /// The tensors of all shards that a diffusers index names, or of the single file in `folder`. Errors: none there; an
  /// index that is no JSON, names a file outside its folder or one that is missing, or a tensor that its file lacks.
  static TensorFile open_folder(const std::filesystem::path& folder);

  /// The module prefixes that wrappers of a model put before every name are gone: "module.", "_orig_mod.".
  const FileTensors& tensors() const { return tensors_; }
  const runtime::TensorMetadata& metadata() const { return metadata_; }
  /// One line about what was chosen from a file with several sets of weights; empty where there was no choice.
  const std::string& note() const { return note_; }

 private:
  void add_safetensors(const std::filesystem::path& path);
  void add_torch(const std::filesystem::path& path);
  void strip_prefixes();

  FileTensors tensors_;
  runtime::TensorMetadata metadata_;
  std::string note_;
  std::vector<std::unique_ptr<runtime::SafetensorsReader>> readers_;
  std::vector<runtime::MappedFile> maps_;
  std::deque<std::vector<std::byte>> unpacked_;
};

/// What a file's first bytes say.
enum class FileKind : uint8_t { zip, unet_cu_weights, unet_cu_data, other };
FileKind kind_of_file(const std::filesystem::path& path);

}  // namespace difuse::models
