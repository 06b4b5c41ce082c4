// The real binary as a child process.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace difuse::test {

struct Outcome {
  int exit_code = -1;  ///< -1 when a signal killed it.
  int killed_by = 0;   ///< That signal.
  std::string out;     ///< Standard output.
  std::string err;     ///< Standard error.
  double seconds = 0;

  std::string last_line() const;
};

using Words = std::vector<std::string>;

/// A running `difuse`, its output going to files. Killed when destroyed while it still runs.
class Process {
 public:
  /// `environment` adds to this process's own: "NAME=value". `folder` is where it runs, empty for here. GPUs are hidden
  /// unless the environment has a CUDA_VISIBLE_DEVICES.
  explicit Process(const Words& arguments, const Words& environment = {}, const std::filesystem::path& folder = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal) const;
  /// Whether standard output held `text` within `seconds`; false as well when the process ends without it.
  bool wait_for_output(const std::string& text, double seconds) { return wait_for(out_, text, seconds); }
  /// The same of standard error.
  bool wait_for_error(const std::string& text, double seconds) { return wait_for(err_, text, seconds); }
  Outcome wait();

 private:
  bool running();
  bool wait_for(const std::filesystem::path& file, const std::string& text, double seconds);

  pid_t id_ = -1;
  bool reaped_ = false;
  int status_ = 0;
  double started_ = 0;
  std::filesystem::path out_, err_;
};

/// Runs `difuse` with these arguments to its end.
Outcome difuse(const Words& arguments, const Words& environment = {}, const std::filesystem::path& folder = {});

}  // namespace difuse::test
