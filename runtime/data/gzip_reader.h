// A file's contents as a stream, decompressed when they are gzip (by content, not by name).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "runtime/mapped_file.h"

struct z_stream_s;

namespace difuse::runtime {

class GzipReader {
 public:
  /// Opens the file; the Errors are MappedFile's.
  explicit GzipReader(std::filesystem::path path);
  ~GzipReader();
  GzipReader(const GzipReader&) = delete;
  GzipReader& operator=(const GzipReader&) = delete;

  /// Fills `out` as far as the contents go and returns how many bytes that was; fewer than asked means the end. Errors:
  /// a truncated stream, a stream that is damaged (its checksum is checked when the end is reached).
  std::size_t read(std::span<std::byte> out);

  bool compressed() const { return stream_ != nullptr; }

  /// No stream of this file can hold more bytes than this: its size, or 1032 times that for gzip (the largest ratio of
  /// deflate). A length field beyond it is a lie that needs no allocation to be found.
  std::uint64_t most_bytes() const;

 private:
  std::size_t inflate_into(std::span<std::byte> out);

  std::filesystem::path path_;
  MappedFile file_;
  std::span<const std::byte> rest_;  // Not consumed yet.
  std::unique_ptr<z_stream_s> stream_;
  bool between_members_ = false;
};

}  // namespace difuse::runtime
