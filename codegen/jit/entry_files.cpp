#include "codegen/jit/entry_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace difuse::codegen {

EntryFolder::EntryFolder(const std::filesystem::path& path)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)), open_error_(descriptor_ < 0 ? errno : 0) {}

EntryFolder::~EntryFolder() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::optional<std::string> EntryFolder::read(const char* name, std::optional<size_t> expected_bytes,
                                             std::string& why) const {
  // Not blocking: a pipe of that name would keep the process waiting for a writer.
  const int file = ::openat(descriptor_, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    why = errno == ENOENT ? fmt::format("{} is missing", name)
                          : fmt::format("{} cannot be read: {}", name, std::strerror(errno));
    return std::nullopt;
  }
  std::string content;
  struct stat status {};
  if (::fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    why = fmt::format("{} is not a file", name);
  } else if (const auto bytes = static_cast<size_t>(status.st_size); expected_bytes && bytes != *expected_bytes) {
    why = fmt::format("{} has {} bytes, not {}", name, bytes, *expected_bytes);
  } else if (bytes > kMostBytes) {
    why = fmt::format("{} has {} bytes", name, bytes);
  } else {
    content.resize(bytes);
    size_t done = 0;
    while (done < bytes) {
      const ssize_t count = ::read(file, content.data() + done, bytes - done);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        why = fmt::format("{} ends early", name);
        break;
      }
      done += static_cast<size_t>(count);
    }
  }
  ::close(file);
  if (!why.empty()) return std::nullopt;
  return content;
}

int write_durably(const std::filesystem::path& path, std::string_view content) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return errno;
  int error = 0;
  while (!content.empty() && error == 0) {
    const ssize_t count = ::write(file, content.data(), content.size());
    if (count >= 0) {
      content.remove_prefix(static_cast<size_t>(count));
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (error == 0 && ::fsync(file) != 0) error = errno;
  if (::close(file) != 0 && error == 0) error = errno;
  return error;
}

}  // namespace difuse::codegen
