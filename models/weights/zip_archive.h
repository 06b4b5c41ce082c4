// Weights as other programs write them live in this folder: reading files without running what is in them, and the
// names and layouts of each program's dialect. What must not: what the parameters are used for.
//
// This file: ZIP archives, which PyTorch's .pt files are. Source: PKWARE's APPNOTE.TXT 6.3 (sections 4.3 and 4.5.3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace difuse::models {

/// The entries of an archive in memory, stored or deflated, with the 64-bit extension. Nothing in the file is believed
/// before it was compared with the file's size, so that nothing is allocated for what cannot be there.
class ZipArchive {
 public:
  struct Entry {
    std::string name;
    bool deflated = false;
    uint32_t crc = 0;
    uint64_t offset = 0;      ///< Of its data.
    uint64_t compressed = 0;  ///< Bytes in the file.
    uint64_t size = 0;        ///< Bytes of the contents.
  };

  /// `file` must outlive the archive; `path` is for messages. Errors: no directory at its end (a truncated file); a
  /// directory or an entry that leaves the file or overlaps another; encryption; a method other than the two; contents
  /// out of all proportion to the file (a zip bomb); a name twice.
  ZipArchive(std::filesystem::path path, std::span<const std::byte> file);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<Entry>& entries() const { return entries_; }
  /// nullptr when there is none of that name.
  const Entry* find(std::string_view name) const;

  /// The bytes of a stored entry in the file itself, or, after decompression, in `buffer`. Error when they do not
  /// decompress to the size that the directory says, or have another check sum.
  std::span<const std::byte> read(const Entry& entry, std::vector<std::byte>& buffer) const;

 private:
  void read_directory(uint64_t at, uint64_t bytes, uint64_t count);
  void check_overlaps() const;

  std::filesystem::path path_;
  std::span<const std::byte> file_;
  std::vector<Entry> entries_;
  std::map<std::string, size_t, std::less<>> index_;
};

}  // namespace difuse::models
