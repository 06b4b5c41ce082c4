#include "models/run/compile_progress.h"

#include <unistd.h>

#include <cstdio>

#include "models/run/console.h"

namespace difuse::models {

using std::chrono::steady_clock;

CompileProgress::CompileProgress()
    : terminal_(::isatty(STDOUT_FILENO) == 1), started_(steady_clock::now()), last_(started_) {}

void CompileProgress::show(const codegen::CompileProgress& now) {
  if (now.cached == now.total) return;
  const bool last = now.done == now.total;
  const auto time = steady_clock::now();
  if (!last && time - last_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10))) return;
  last_ = time;
  if (last) {
    say("{}kernels: {} compiled, {} from the cache, in {:.1f} s\n", terminal_ ? "\r" : "", now.total - now.cached,
        now.cached, std::chrono::duration<double>(time - started_).count());
  } else {
    say("{}compiling kernels: {} of {}{}", terminal_ ? "\r" : "", now.done, now.total, terminal_ ? "" : "\n");
  }
  std::fflush(stdout);
}

}  // namespace difuse::models
