// Which images are computed by the contractions that read them: found out by timing whole steps, for what a prologue
// spares is time of another kernel. This search knows neither GPU nor compiler.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "codegen/tune/table.h"
#include "passes/fusion/choices.h"
#include "passes/fusion/report.h"

namespace difuse::runtime {

/// All images of a step that are one kind of site.
struct TunedPrologue {
  passes::PrologueSite site;  ///< The seconds are sums over them; `computed` is the decision.
  int uses = 1;
  double computed_seconds = 0, stored_seconds = 0;  ///< Of a whole step; 0 where it was not timed.
  std::string rejected;                             ///< Why it was not.
};

/// Each kind of site once, those that spare most first. Where the estimated price is beyond twice of what is spared,
/// the site is rejected.
std::vector<TunedPrologue> prologues_to_tune(const std::vector<passes::PrologueSite>& sites);

struct PrologueMeans {
  /// Seconds of a step with each of the two, in the same measurement. The first is one that was compared before, but
  /// for the first call.
  std::function<std::pair<double, double>(const passes::FusionChoices& now, const passes::FusionChoices& other)>
      compare;
  /// Seconds since any moment.
  std::function<double()> clock;
};

struct PrologueSettings {
  double budget = 0;             ///< Seconds; what is decided by then counts.
  std::function<bool()> stop{};  ///< Asked often; true: no more.
  std::function<void(const TunedPrologue&, size_t done, size_t total)> each{};
};

struct PrologueResult {
  codegen::TuningTable decisions;    ///< Of those that were timed.
  std::vector<TunedPrologue> sites;  ///< Those that were tried, in order.
  size_t left = 0;                   ///< Those that were not, for lack of time.
  /// Seconds of the step at first and with all estimates at once; 0 where the two were not compared.
  double before_estimates = 0, with_estimates = 0;
};

/// Begins with `now`, and where the estimates say otherwise with all of them at once, if a step is faster so. Then,
/// site by site, the other decision is taken if a step is faster by more than the noise of such times, 0.3 %.
///
/// What cannot be compared (an Error: memory is short, a kernel does not compile) is rejected with its reason.
PrologueResult tune_prologues(std::vector<TunedPrologue> sites, passes::FusionChoices now, const PrologueMeans& means,
                              const PrologueSettings& settings);

}  // namespace difuse::runtime
