// The progress of a training run: one line that is rewritten on a terminal, one line every few steps elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace difuse::models {

struct ProgressGoal {
  std::optional<int64_t> steps;                                   ///< Stop when so many steps are finished in all.
  std::optional<std::chrono::steady_clock::time_point> deadline;  ///< Stop at this time.
};

/// What has happened since the line before.
struct ProgressLine {
  int64_t step = 0;         ///< Steps finished in all.
  double loss = 0;          ///< Smoothed.
  double grad_norm = 0;     ///< Of the last step.
  double rate = 0;          ///< Images per second.
  double step_seconds = 0;  ///< Of one step, on average.
  double wait_share = 0;    ///< Of the time, waiting for data: 0 to 1.
  int64_t memory = 0;       ///< Peak resident bytes of the process, or bytes of the arena on a GPU.
};

class Progress {
 public:
  /// Writes to standard output; whether that is a terminal decides the form.
  explicit Progress(ProgressGoal goal);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// On a terminal, whether enough time has passed to rewrite the line.
  bool due() const;
  void show(const ProgressLine& line);
  /// A message on a line of its own.
  void note(const std::string& text);
  /// Ends a line that is being rewritten.
  void finish();

 private:
  std::string eta(const ProgressLine& line) const;

  ProgressGoal goal_;
  bool terminal_ = false;
  bool open_line_ = false;
  size_t width_ = 0;
  std::chrono::steady_clock::time_point last_;
};

/// Peak resident memory of this process, in bytes.
int64_t peak_memory();

}  // namespace difuse::models
