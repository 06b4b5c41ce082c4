#include "models/run/tuning.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "models/run/console.h"

namespace difuse::models {

runtime::StepTuning tune(const ir::Graph& graph, const ir::Options& environment, const Backend& backend,
                         runtime::TuneSettings settings, bool again, bool quiet) {
  runtime::CompileSettings compiling;
  compiling.precision = backend.precision;
  compiling.prologues = backend.prologues;
  compiling.log = &std::cerr;
  const bool terminal = !quiet && ::isatty(STDOUT_FILENO) == 1;
  if (terminal) {
    settings.progress = [](const codegen::CompileProgress& now) {
      say("\rcompiling candidates: {} of {} ", now.done, now.total);
      if (now.done == now.total) say("\r{:50}\r", "");
      std::fflush(stdout);
    };
  }
  runtime::StepTuning tuning = runtime::tune_step(graph, environment, backend.target, compiling, settings, again);
  if (!quiet) say("{}\n", tuning_line(tuning));
  std::fflush(stdout);
  return tuning;
}

std::string tuning_line(const runtime::StepTuning& tuning) {
  int faster = 0;
  for (const runtime::TunedSite& site : tuning.result.sites) faster += site.winner > 0 ? 1 : 0;
  std::string line = fmt::format("tuned: {} kernels, {} of them with another tile than before, {} known already",
                                 tuning.result.sites.size(), faster, tuning.known);
  int computed = 0, timed = 0;
  for (const runtime::TunedPrologue& p : tuning.prologues.sites) {
    timed += p.rejected.empty() ? 1 : 0;
    computed += p.rejected.empty() && p.site.computed ? 1 : 0;
  }
  if (timed > 0) line += fmt::format(", {} of {} kinds of images computed on the way", computed, timed);
  if (const auto& p = tuning.prologues; p.before_estimates > 0) {
    line += fmt::format(" (by the estimates alone {:.3f} ms instead of {:.3f} ms)", p.with_estimates * 1e3,
                        p.before_estimates * 1e3);
  }
  if (const size_t left = tuning.result.left + tuning.prologues.left; left > 0) {
    line += fmt::format(", {} left {}", left, tuning.result.stopped ? "after a signal" : "for lack of time");
  }
  if (tuning.step_before > 0) {
    line += fmt::format("; step {:.3f} ms before, {:.3f} ms after{}", tuning.step_before * 1e3, tuning.step_after * 1e3,
                        tuning.is_better() ? "" : ": the decisions of before stay");
  }
  if (!tuning.not_compared.empty()) line += "; the whole step was not compared: " + tuning.not_compared;
  if (tuning.kept) line += fmt::format("; kept in {}", tuning.path.string());
  return line;
}

}  // namespace difuse::models
