// How far something long is: one line that is rewritten on a terminal, a line every ten seconds elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace difuse::models {

class CountProgress {
 public:
  /// "decoding: 40 of 1,000 files" for ("decoding", "files"). Writes to standard output.
  CountProgress(std::string doing, std::string things);
  ~CountProgress();
  CountProgress(const CountProgress&) = delete;
  CountProgress& operator=(const CountProgress&) = delete;

  void show(int64_t done, int64_t total);

 private:
  const std::string doing_, things_;
  const bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace difuse::models
