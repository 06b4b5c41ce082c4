// The safetensors file format: named tensors and a string-to-string table, without code in it.
//
//   8 bytes           N, little-endian
//   N bytes           JSON: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
//                     "__metadata__": {"key": "value"}}; it begins with '{' and may end in spaces
//   the rest          the tensors' bytes; offsets count from here, every byte belongs to exactly one tensor
//
// Source: https://github.com/huggingface/safetensors (README, "Format"). Numbers are little-endian, tensors are
// row-major. What the tensors mean (parameters, moments, a configuration) is not known here: see the checkpoint code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/types.h"
#include "runtime/mapped_file.h"

namespace difuse::runtime {

/// The format's element types; more than the graph's own, so that foreign files can be listed.
enum class TensorDType { boolean, u8, i8, f8_e5m2, f8_e4m3, u16, i16, f16, bf16, u32, i32, f32, u64, i64, f64 };

/// The name in the file: "F32", "BF16", ...
std::string_view tensor_dtype_name(TensorDType dtype);
std::size_t tensor_dtype_bytes(TensorDType dtype);
TensorDType to_tensor_dtype(ir::DType dtype);
/// Nothing when the graph has no such type.
std::optional<ir::DType> to_ir_dtype(TensorDType dtype);

struct TensorInfo {
  std::string name;
  TensorDType dtype = TensorDType::f32;
  std::vector<std::int64_t> shape;  ///< Empty for a scalar.
  std::uint64_t offset = 0;         ///< In bytes, from the start of the file.
  std::uint64_t bytes = 0;

  /// True when this is exactly the graph's `type`.
  bool matches(const ir::Type& type) const { return dtype == to_tensor_dtype(type.dtype) && shape == type.shape; }
};

/// Sorted by key, so that the same table always gives the same file.
using TensorMetadata = std::map<std::string, std::string, std::less<>>;

/// An open file. The header is read and checked in full by the constructor, tensor bytes only when they are touched.
class SafetensorsReader {
 public:
  /// Throws an Error that names the file for what it is: missing, a folder, empty, truncated (bytes expected and
  /// found), a Git-LFS pointer, a web page, a zip or pickle checkpoint, a header that is too long, not JSON or
  /// malformed, a name twice, a dtype that is unknown, offsets that overlap, leave a gap, leave the file or contradict
  /// shape x dtype.
  explicit SafetensorsReader(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  const TensorMetadata& metadata() const { return metadata_; }

  /// In the order of their bytes in the file.
  std::span<const TensorInfo> tensors() const { return tensors_; }

  /// nullptr when the file has no such tensor. The pointer lives as long as the reader.
  const TensorInfo* find(std::string_view name) const;

  /// The tensor's bytes, valid while the reader lives; not necessarily aligned for the dtype, so copy rather than cast.
  /// Error when there is no such tensor.
  std::span<const std::byte> bytes(std::string_view name) const;
  std::span<const std::byte> bytes(const TensorInfo& tensor) const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  TensorMetadata metadata_;
  std::vector<TensorInfo> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

struct TensorEntry {
  std::string name;
  TensorDType dtype = TensorDType::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;  ///< Must hold exactly shape x dtype bytes; only read during the call.
};

/// Writes the tensors in the given order through AtomicFile. The bytes of the file depend on the arguments alone.
/// Error when the disk is full or the path unwritable (the old file stays), when a name comes twice, is reserved
/// ("__metadata__") or is not UTF-8, and when an entry's bytes contradict its shape.
void write_safetensors(const std::filesystem::path& path, const TensorMetadata& metadata,
                       std::span<const TensorEntry> tensors);

}  // namespace difuse::runtime
