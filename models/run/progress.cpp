#include "models/run/progress.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "models/run/console.h"
#include "models/run/units.h"

namespace difuse::models {

using std::chrono::steady_clock;

Progress::Progress(ProgressGoal goal)
    : goal_(goal), terminal_(::isatty(STDOUT_FILENO) == 1), last_(steady_clock::now()) {}

bool Progress::due() const {
  return terminal_ && steady_clock::now() - last_ >= std::chrono::milliseconds(open_line_ ? 250 : 0);
}

std::string Progress::eta(const ProgressLine& line) const {
  double left = -1;
  if (goal_.steps) left = static_cast<double>(*goal_.steps - line.step) * line.step_seconds;
  if (goal_.deadline) {
    const double until = std::chrono::duration<double>(*goal_.deadline - steady_clock::now()).count();
    left = left < 0 ? until : std::min(left, until);
  }
  return left < 0 && !goal_.steps && !goal_.deadline ? "until stopped" : "ETA " + format_duration(left);
}

void Progress::show(const ProgressLine& line) {
  const std::string of = goal_.steps ? fmt::format("/{}", *goal_.steps) : std::string();
  const std::string loss = std::isfinite(line.loss) ? fmt::format("{:.4f}", line.loss) : std::string("-");
  const std::string grad = std::isfinite(line.grad_norm) ? fmt::format("{:.3g}", line.grad_norm) : std::string("-");
  std::string text =
      fmt::format("step {}{}  loss {}  grad {}  {:.1f} images/s  {}  {}  data wait {:.0f} %", line.step, of, loss, grad,
                  line.rate, eta(line), format_bytes(static_cast<uint64_t>(line.memory)), 100 * line.wait_share);
  if (terminal_) {
    const size_t length = text.size();
    text.resize(std::max(length, width_), ' ');  // Covers what is left of a longer line.
    width_ = length;
    say("\r{}", text);
    open_line_ = true;
  } else {
    say("{}\n", text);
  }
  std::fflush(stdout);
  last_ = steady_clock::now();
}

void Progress::note(const std::string& text) {
  finish();
  say("{}\n", text);
  std::fflush(stdout);
}

void Progress::finish() {
  if (!open_line_) return;
  say("\n");
  std::fflush(stdout);
  open_line_ = false;
  width_ = 0;
}

int64_t peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace difuse::models
