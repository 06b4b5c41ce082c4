#include "runtime/tune/prologue_search.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "ir/error.h"

namespace difuse::runtime {
namespace {

using passes::FusionChoices;

constexpr double kNoise = 0.003;      // Of a step's median, on a GPU that nothing else uses.
constexpr double kHopelessPrice = 4;  // Estimates, which leave the launch out that is spared, are off by less.
constexpr double kMicroseconds = 1e6;

class PrologueSearch {
 public:
  PrologueSearch(const PrologueMeans& means, const PrologueSettings& settings, FusionChoices now)
      : means_(means), settings_(settings), end_(means.clock() + settings.budget), now_(std::move(now)) {}

  PrologueResult run(std::vector<TunedPrologue> sites) {
    PrologueResult result;
    const size_t total = sites.size();
    take_estimates(sites, result);
    for (TunedPrologue& site : sites) {
      if (site.rejected.empty()) {
        if (over()) {
          ++result.left;
          continue;
        }
        try_other(site, result.decisions);
      }
      result.sites.push_back(std::move(site));
      if (settings_.each) settings_.each(result.sites.back(), result.sites.size(), total);
    }
    return result;
  }

 private:
  bool over() const { return means_.clock() >= end_ || (settings_.stop && settings_.stop()); }

  static FusionChoices with(FusionChoices choices, const passes::PrologueSite& site, bool computed) {
    choices.prologues.insert_or_assign({site.site, site.batch}, computed);
    return choices;
  }

  /// All that the estimates would decide otherwise, together: single ones may gain less than the noise.
  void take_estimates(std::vector<TunedPrologue>& sites, PrologueResult& result) {
    FusionChoices estimated = now_;
    std::vector<TunedPrologue*> changed;
    for (TunedPrologue& tuned : sites) {
      if (!tuned.rejected.empty() || tuned.site.estimated == tuned.site.computed) continue;
      estimated = with(std::move(estimated), tuned.site, tuned.site.estimated);
      changed.push_back(&tuned);
    }
    if (changed.size() < 2 || over()) return;  // One is tried alone anyway.
    try {
      const auto [before, after] = means_.compare(now_, estimated);
      result.before_estimates = before, result.with_estimates = after;
      if (after > (1 - kNoise) * before) return;
      now_ = std::move(estimated);
      for (TunedPrologue* tuned : changed) {
        const bool computed = tuned->site.estimated;
        decide(*tuned, computed, computed ? before : after, computed ? after : before, result.decisions);
      }
    } catch (const Error&) {
      // One by one it is said what is wrong.
    }
  }

  void try_other(TunedPrologue& tuned, codegen::TuningTable& decisions) {
    FusionChoices other = with(now_, tuned.site, !tuned.site.computed);
    try {
      const auto [before, after] = means_.compare(now_, other);
      const bool is_better = after < (1 - kNoise) * before;
      decide(tuned, tuned.site.computed != is_better, tuned.site.computed ? after : before,
             tuned.site.computed ? before : after, decisions);
      if (is_better) now_ = std::move(other);
    } catch (const Error& error) {
      tuned.rejected = error.what();
    }
  }

  static void decide(TunedPrologue& tuned, bool computed, double stored_seconds, double computed_seconds,
                     codegen::TuningTable& decisions) {
    tuned.site.computed = computed;
    tuned.computed_seconds = computed_seconds, tuned.stored_seconds = stored_seconds;
    const auto in_table = [](double seconds) { return std::round(seconds * kMicroseconds * 100) / 100; };
    decisions.set_prologue(tuned.site.site, tuned.site.batch,
                           {computed, in_table(computed_seconds), in_table(stored_seconds)});
  }

  const PrologueMeans& means_;
  const PrologueSettings& settings_;
  double end_;
  FusionChoices now_;
};

}  // namespace

std::vector<TunedPrologue> prologues_to_tune(const std::vector<passes::PrologueSite>& sites) {
  std::vector<TunedPrologue> kinds;
  std::map<passes::BatchKey, size_t> known;
  for (const passes::PrologueSite& site : sites) {
    const auto [it, fresh] = known.try_emplace({site.site, site.batch}, kinds.size());
    if (fresh) {
      kinds.push_back({.site = site, .rejected = {}});
      continue;
    }
    TunedPrologue& kind = kinds[it->second];
    ++kind.uses;
    kind.site.spared += site.spared, kind.site.price += site.price;
    kind.site.estimated |= site.estimated, kind.site.computed |= site.computed;
  }
  for (TunedPrologue& kind : kinds) {
    if (!kind.site.computed && !kind.site.estimated && kind.site.price > kHopelessPrice * kind.site.spared) {
      kind.rejected = "by the estimate it costs more than four times what it spares";
    }
  }
  std::ranges::stable_sort(kinds, std::greater(), [](const TunedPrologue& kind) { return kind.site.spared; });
  return kinds;
}

PrologueResult tune_prologues(std::vector<TunedPrologue> sites, FusionChoices now, const PrologueMeans& means,
                              const PrologueSettings& settings) {
  return PrologueSearch(means, settings, std::move(now)).run(std::move(sites));
}

}  // namespace difuse::runtime
