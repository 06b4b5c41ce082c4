// The folder a run writes into.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace difuse::models {

/// Whether `path` is `folder` or lies below it, links followed. Neither has to exist.
bool is_within(const std::filesystem::path& path, const std::filesystem::path& folder);

/// Error (wrong_usage) when a run in `out` would write its pictures among the images of the folder `data`.
void require_outside_data(const std::filesystem::path& out, const std::filesystem::path& data);

/// Gives what an earlier run left where a new one writes, its metrics and its folder of samples, a name that is free,
/// and says so. Error when that fails.
void set_earlier_files_aside(const std::filesystem::path& folder);

/// Makes sure that `path` is a folder that can be written. Folders that had to be made are removed again, as far as
/// they are empty, unless keep() says that the run has begun.
class OutputFolder {
 public:
  /// Creates the folder and its parents. Error (wrong_usage) naming --out when it cannot be made or written.
  explicit OutputFolder(std::filesystem::path path);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  /// Error with both sizes when the disk has not enough free for `count` files like `name`, of `bytes` each.
  void require_space(const std::filesystem::path& name, uint64_t bytes, int64_t count) const;

  void keep() { created_.clear(); }
  const std::filesystem::path& path() const { return path_; }

 private:
  void remove_created() noexcept;

  std::filesystem::path path_;
  std::vector<std::filesystem::path> created_;  // Outermost first.
};

/// Holds the folder against other runs while it lives: a lock on its file `.lock`, which a process that dies gives up.
/// Where the folder cannot be written or its file system has no locks, it holds nothing.
class RunLock {
 public:
  /// Error (wrong_usage) naming the folder when a run holds it.
  explicit RunLock(const std::filesystem::path& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace difuse::models
