#include "models/run/output_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "ir/error.h"
#include "models/run/console.h"
#include "models/run/units.h"
#include "runtime/atomic_file.h"

namespace difuse::models {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void unusable(const fs::path& path, std::string_view reason, ExitCode exit_code = ExitCode::wrong_usage) {
  throw Error(fmt::format("--out '{}' cannot be used: {}", path.string(), reason),
              "choose a folder that can be created and written", exit_code);
}

}  // namespace

bool is_within(const fs::path& path, const fs::path& folder) {
  std::error_code error;
  const auto real = [&error](const fs::path& of) { return fs::weakly_canonical(fs::absolute(of, error), error); };
  const fs::path relative = real(path).lexically_relative(real(folder));
  return !relative.empty() && *relative.begin() != "..";
}

void require_outside_data(const fs::path& out, const fs::path& data) {
  std::error_code ignored;
  if (!fs::is_directory(data, ignored) || !is_within(out, data)) return;
  throw Error(fmt::format("--out '{}' is in the folder of --data '{}': the run's own samples would become images to "
                          "train on",
                          out.string(), data.string()),
              "choose a folder outside of the data for --out", ExitCode::wrong_usage);
}

void set_earlier_files_aside(const fs::path& folder) {
  for (const char* name : {"metrics.jsonl", "samples"}) {
    const fs::path file = folder / name;
    std::error_code error;
    const bool there = name == std::string_view("samples") ? fs::is_directory(file, error) : fs::exists(file, error);
    if (!there || fs::is_empty(file, error)) continue;
    fs::path aside = file;
    for (int number = 1; fs::exists(fs::symlink_status(aside, error)); ++number) {
      aside = folder / fmt::format("{}.{}", name, number);
    }
    fs::rename(file, aside, error);
    if (error) throw runtime::write_error(aside, error.value());
    say("'{}' of an earlier run is kept as '{}'\n", file.string(), aside.string());
  }
}

OutputFolder::OutputFolder(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  if (fs::exists(path_, error) && !fs::is_directory(path_, error)) unusable(path_, "it is a file, not a folder");
  fs::path so_far;
  for (const fs::path& part : path_) {
    so_far /= part;
    const bool made = fs::create_directory(so_far, error);
    if (error) {
      remove_created();
      const bool below_file = error == std::errc::not_a_directory || error == std::errc::file_exists;
      unusable(path_, fmt::format("creating '{}': {}", so_far.string(),
                                  below_file ? "a part of the path is a file, not a folder" : error.message()));
    }
    if (made) created_.push_back(so_far);
  }
  try {
    runtime::require_writable(path_ / "checkpoint.safetensors", 0);
  } catch (const Error& failure) {
    remove_created();
    throw Error(fmt::format("--out '{}' cannot be used: {}", path_.string(), failure.what()), failure.remedy(),
                failure.exit_code());
  }
}

OutputFolder::~OutputFolder() { remove_created(); }

void OutputFolder::require_space(const fs::path& name, uint64_t bytes, int64_t count) const {
  std::error_code error;
  const fs::space_info space = fs::space(path_, error);
  if (!error && space.available / bytes < static_cast<uint64_t>(count)) {
    const std::string several =
        count == 1 ? "" : fmt::format(" and up to {} are to be written beside those that are there", count);
    throw Error(fmt::format("--out '{}': a checkpoint takes {}{}, but the disk has only {} free", path_.string(),
                            format_bytes(bytes), several, format_bytes(space.available)),
                "free some space, or choose a folder on another disk");
  }
  runtime::require_writable(path_ / name, bytes);
}

void OutputFolder::remove_created() noexcept {
  std::error_code ignored;
  for (; !created_.empty(); created_.pop_back()) fs::remove(created_.back(), ignored);
}

RunLock::RunLock(const fs::path& folder) : path_(folder / ".lock") {
  for (;;) {
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (descriptor_ < 0) return;
    int failed = 0;
    do {
      failed = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    } while (failed == EINTR);
    if (failed == EWOULDBLOCK) {
      ::close(descriptor_);
      throw Error(fmt::format("--out '{}' is in use by another run", folder.string()),
                  "wait until it ends or stop it, or choose another folder", ExitCode::wrong_usage);
    }
    if (failed != 0) return;
    // The run before may have removed its file between the opening and the locking.
    struct stat held {
    }, named{};
    if (::fstat(descriptor_, &held) == 0 && ::stat(path_.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
        held.st_dev == named.st_dev) {
      return;
    }
    ::close(descriptor_);
  }
}

RunLock::~RunLock() {
  if (descriptor_ < 0) return;
  struct stat held {};
  if (::fstat(descriptor_, &held) == 0 && held.st_size == 0) ::unlink(path_.c_str());
  ::close(descriptor_);
}

}  // namespace difuse::models
