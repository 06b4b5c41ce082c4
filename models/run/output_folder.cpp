#include "models/run/output_folder.h"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>

#include "ir/error.h"
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

void OutputFolder::require_space(const fs::path& name, uint64_t bytes) const {
  std::error_code error;
  const fs::space_info space = fs::space(path_, error);
  if (!error && space.available < bytes) {
    throw Error(fmt::format("--out '{}': a checkpoint takes {}, but the disk has only {} free", path_.string(),
                            format_bytes(bytes), format_bytes(space.available)),
                "free some space, or choose a folder on another disk");
  }
  runtime::require_writable(path_ / name, bytes);
}

void OutputFolder::remove_created() noexcept {
  std::error_code ignored;
  for (; !created_.empty(); created_.pop_back()) fs::remove(created_.back(), ignored);
}

}  // namespace difuse::models
