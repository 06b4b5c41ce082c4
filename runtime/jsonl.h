// The metrics log: one JSON object per line, in the order of writing, readable while it grows.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace difuse::runtime {

class JsonlLog {
 public:
  /// Starts an empty log at `path`; what was there is lost. Error when the path cannot be written.
  static JsonlLog create(const std::filesystem::path& path);

  /// Continues the log of a run that resumes after `step`: lines with a "step" beyond it, written after the checkpoint
  /// that the run resumes from, are removed, and so is a last line that was cut off. A missing file is an empty log.
  /// Error, and an untouched file, when any other line is not a JSON object, or the path cannot be written.
  static JsonlLog resume(const std::filesystem::path& path, std::int64_t step);

  ~JsonlLog();
  JsonlLog(JsonlLog&& other) noexcept;
  JsonlLog& operator=(JsonlLog&& other) noexcept;

  /// Writes one line at once; a reader sees all of it or nothing. NaN and infinities become null. Error naming the file
  /// when the disk is full; no half line stays.
  void append(const nlohmann::ordered_json& object);

 private:
  JsonlLog(std::filesystem::path path, bool empty_it);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace difuse::runtime
