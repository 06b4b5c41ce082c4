#include "runtime/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "ir/error.h"

namespace difuse::runtime {

namespace {

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe must not wait for a writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      throw Error(fmt::format("'{}' does not exist", path.string()), "check the path", ExitCode::wrong_usage);
    }
    throw Error(fmt::format("cannot read '{}': {}", path.string(), std::strerror(errno)),
                "check the path and its permissions", ExitCode::wrong_usage);
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) {
    throw Error(fmt::format("cannot read '{}': {}", path.string(), std::strerror(errno)), "check the path");
  }
  if (S_ISDIR(info.st_mode)) {
    throw Error(fmt::format("'{}' is a folder, not a file", path.string()), "give the path of a file",
                ExitCode::wrong_usage);
  }
  if (!S_ISREG(info.st_mode)) {
    throw Error(fmt::format("'{}' is a device or a pipe, not a file", path.string()), "give the path of a file",
                ExitCode::wrong_usage);
  }
  const auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) return;
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) {
    throw Error(fmt::format("cannot map '{}' ({} bytes) into memory: {}", path.string(), size, std::strerror(errno)),
                "check that the file's disk supports mapping, or copy the file to a local disk");
  }
  bytes_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace difuse::runtime
