// Everything that difuse writes whole (checkpoints, pictures) goes through AtomicFile: after a crash, a full disk or a
// signal, the path holds either the old file or the new one, never half of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "ir/error.h"

namespace difuse::runtime {

/// The Error for a write to `path` that failed with `error_number` (an errno). Says what happened in the reader's words
/// (disk full, folder missing, no permission) and what to do; `consequence` is a clause about what was kept, or empty.
Error write_error(const std::filesystem::path& path, int error_number, std::string_view consequence = {});

/// Writes all of `bytes` to `descriptor`, over short writes and interruptions. Returns 0, or the errno of the failure.
int write_all(int descriptor, std::span<const std::byte> bytes);

/// A file being written under a temporary name (`<name>.tmp.<pid>` in the same folder) that takes its real name in
/// commit(). Destroyed without commit(), it removes the temporary file and leaves the old file untouched. One
/// AtomicFile per path at a time. A symbolic link at the path is replaced, not followed.
class AtomicFile {
 public:
  /// Opens the temporary file. `reserve_bytes` > 0 claims that much disk space now, so that a full disk is found before
  /// any work is done. Errors: folder missing or unwritable, disk full, `path` names something that is not a file.
  explicit AtomicFile(std::filesystem::path path, std::uint64_t reserve_bytes = 0);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Appends; throws Error when the bytes cannot be stored.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }

  /// fsync the file, rename it over `path`, fsync the folder: after this the new file survives a power cut.
  void commit();

 private:
  [[noreturn]] void fail(int error_number);
  void discard() noexcept;

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  int descriptor_ = -1;
  std::uint64_t written_ = 0;
  bool reserved_ = false;
};

/// Throws the Error that writing `bytes` bytes to `path` would throw; creates nothing that stays. For the start of long
/// work that ends in a file.
void require_writable(const std::filesystem::path& path, std::uint64_t bytes);

}  // namespace difuse::runtime
