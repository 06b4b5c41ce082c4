// A file's bytes as read-only memory; pages are read when they are touched.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace difuse::runtime {

/// Maps a regular file for reading. The mapping keeps the file that was opened, even when a new one is renamed over it.
class MappedFile {
 public:
  MappedFile() = default;

  /// Errors, each with its own message: no such file, a folder, a device or pipe, no permission. An empty file is fine
  /// and gives an empty span.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace difuse::runtime
