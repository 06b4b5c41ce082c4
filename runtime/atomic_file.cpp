#include "runtime/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

namespace difuse::runtime {

namespace fs = std::filesystem;

namespace {

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

std::string_view kept_clause(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) ? "the file that was there before is unchanged" : "nothing was left behind";
}

}  // namespace

Error write_error(const fs::path& path, int error_number, std::string_view consequence) {
  std::string reason = std::strerror(error_number);
  std::string remedy = "check the path, or choose another one";
  ExitCode exit_code = ExitCode::failed;
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      reason = error_number == ENOSPC ? "the disk is full" : "the disk quota is used up";
      remedy = "free some space, or choose a path on another disk";
      break;
    case EFBIG:
      reason = "the file would be larger than this system or its limits allow";
      remedy = "raise the limit (ulimit -f), or choose a path on another disk";
      break;
    case ENOENT:
      reason = fmt::format("the folder '{}' does not exist", folder_of(path).string());
      remedy = "create the folder, or choose another path";
      exit_code = ExitCode::wrong_usage;
      break;
    case ENOTDIR:
      reason = fmt::format("a part of '{}' is a file, not a folder", folder_of(path).string());
      exit_code = ExitCode::wrong_usage;
      break;
    case EISDIR:
      reason = "it is a folder, not a file";
      remedy = "give the path of a file";
      exit_code = ExitCode::wrong_usage;
      break;
    case EACCES:
    case EPERM:
      reason = "no permission to write there";
      remedy = "change the folder's permissions, or choose another path";
      exit_code = ExitCode::wrong_usage;
      break;
    case EROFS:
      reason = "the file system is read-only";
      remedy = "choose a path on a writable disk";
      exit_code = ExitCode::wrong_usage;
      break;
    default:
      break;
  }
  const std::string tail = consequence.empty() ? std::string() : fmt::format("; {}", consequence);
  return Error(fmt::format("cannot write '{}': {}{}", path.string(), reason, tail), remedy, exit_code);
}

int write_all(int descriptor, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
    if (count < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return 0;
}

AtomicFile::AtomicFile(fs::path path, std::uint64_t reserve_bytes) : path_(std::move(path)) {
  if (path_.empty())
    throw Error("cannot write a file without a name", "give the path of a file", ExitCode::wrong_usage);
  std::error_code ignored;
  // The file behind a link is what is replaced, not the link.
  if (fs::is_symlink(path_, ignored)) path_ = fs::weakly_canonical(path_);
  const fs::file_status status = fs::status(path_, ignored);
  if (fs::is_directory(status) || !path_.has_filename()) throw write_error(path_, EISDIR);
  // A rename would replace a device such as /dev/null itself.
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw Error(fmt::format("cannot write '{}': it is a device or a pipe, not a file", path_.string()),
                "give the path of a file", ExitCode::wrong_usage);
  }

  temporary_ = path_;
  temporary_ += fmt::format(".tmp.{}", ::getpid());
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  descriptor_ = ::open(temporary_.c_str(), kFlags, 0666);
  if (descriptor_ < 0 && errno == EEXIST) {
    // Left by a process that was killed and had the same id.
    ::unlink(temporary_.c_str());
    descriptor_ = ::open(temporary_.c_str(), kFlags, 0666);
  }
  if (descriptor_ < 0) {
    const int error_number = errno;  // kept_clause looks at the disk and would change it
    throw write_error(path_, error_number, kept_clause(path_));
  }

  if (reserve_bytes > 0) {
    int result = 0;
    do {
      result = ::fallocate(descriptor_, 0, 0, static_cast<off_t>(reserve_bytes)) == 0 ? 0 : errno;
    } while (result == EINTR);
    reserved_ = result == 0;
    // Where the file system cannot reserve, write() finds the full disk instead.
    if (result == ENOSPC || result == EDQUOT || result == EFBIG) fail(result);
  }
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (const int error_number = write_all(descriptor_, bytes); error_number != 0) fail(error_number);
  written_ += bytes.size();
}

void AtomicFile::commit() {
  if (reserved_ && ::ftruncate(descriptor_, static_cast<off_t>(written_)) != 0) fail(errno);
  if (::fsync(descriptor_) != 0) fail(errno);
  // On some network file systems only close() reports that the disk is full.
  if (::close(std::exchange(descriptor_, -1)) != 0) fail(errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail(errno);
  temporary_.clear();

  const int folder = ::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;  // A folder may be writable and not readable; the rename itself is done.
  const int result = ::fsync(folder) == 0 ? 0 : errno;
  ::close(folder);
  // Some file systems do not sync folders; that is all the durability they have.
  if (result != 0 && result != EINVAL && result != ENOTSUP) throw write_error(path_, result);
}

void AtomicFile::fail(int error_number) {
  discard();
  throw write_error(path_, error_number, kept_clause(path_));
}

void AtomicFile::discard() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
  temporary_.clear();
}

void require_writable(const fs::path& path, std::uint64_t bytes) { AtomicFile probe(path, bytes); }

}  // namespace difuse::runtime
