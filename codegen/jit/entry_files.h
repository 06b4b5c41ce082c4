// Reading and writing the small files of a cache entry. Codegen's own: runtime's files lie a floor above.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace difuse::codegen {

/// A folder held open: while it is renamed or removed by others, what is read is still of one entry.
class EntryFolder {
 public:
  explicit EntryFolder(const std::filesystem::path& path);
  EntryFolder(const EntryFolder&) = delete;
  EntryFolder& operator=(const EntryFolder&) = delete;
  ~EntryFolder();

  bool is_open() const { return descriptor_ >= 0; }
  int open_error() const { return open_error_; }  ///< errno of opening it.

  /// The whole content; nullopt with `why` set ("is missing", "has 12 bytes, not 4080") where there is no regular file
  /// of `expected_bytes`, or of at most kMostBytes where the size is not known.
  std::optional<std::string> read(const char* name, std::optional<size_t> expected_bytes, std::string& why) const;

  static constexpr size_t kMostBytes = 64 << 20;

 private:
  int descriptor_;
  int open_error_;
};

/// Creates `path` with this content and waits until it is on the disk. 0 or an errno.
int write_durably(const std::filesystem::path& path, std::string_view content);

}  // namespace difuse::codegen
