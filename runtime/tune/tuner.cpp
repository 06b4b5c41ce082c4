#include "runtime/tune/tuner.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "runtime/executor.h"

namespace difuse::runtime {
namespace {

using codegen::cuda::CudaPlan;
using codegen::cuda::KernelCall;
using codegen::cuda::TuningSite;

constexpr double kTie = 1.005;
constexpr double kHopeless = 1.3;  // A first round is off by less.

/// To the hundredth, as tables say it.
double microseconds(double seconds) { return std::round(seconds * 1e8) / 100; }

/// Thrown out of a compilation that takes too long.
struct OutOfTime {};

/// A site with its candidates by number, in the order in which they are tried.
struct Trial {
  TunedSite report;
  std::vector<size_t> candidates;
  CudaPlan plan;  // Of all of them.
  double work = 0;
};

/// The call with the tile of the plan's `candidate`-th candidate.
const KernelCall& timed_call(const TuningSite& site, const CudaPlan& plan, size_t candidate) {
  return *std::ranges::find_if(plan.calls, [&](const KernelCall& call) {
    return call.node == static_cast<int>(candidate) && call.choice == site.index();
  });
}

Trial make_trial(const TuningSite& site, const codegen::TuningTable& current, size_t most) {
  const codegen::cuda::TileChoice& choice = site.choice();
  Trial trial;
  size_t first = 0;
  if (const codegen::Decision* decision = current.find(choice.problem, choice.batch)) {
    const auto found = std::ranges::find(choice.tiles, decision->tile);
    if (found != choice.tiles.end()) first = static_cast<size_t>(found - choice.tiles.begin());
  }
  trial.candidates.push_back(first);
  std::vector<size_t> order = choice.at_batch;
  order.resize(choice.tiles.size());
  if (choice.at_batch.empty()) std::iota(order.begin(), order.end(), size_t{0});
  for (const size_t i : order) {
    if (i != first && trial.candidates.size() < most) trial.candidates.push_back(i);
  }
  trial.plan = site.plan(trial.candidates);
  trial.report.site = &site;
  for (size_t i = 0; i < trial.candidates.size(); ++i) {
    const KernelCall& call = timed_call(site, trial.plan, i);
    trial.report.candidates.push_back({choice.tiles[trial.candidates[i]], 0, call.shared_bytes, ""});
    trial.report.bytes = call.bytes, trial.report.flops = call.flops;
  }
  // Of most cards, a byte takes as long as some hundred operations.
  constexpr double kOperationsOfAByte = 150;
  trial.work = site.uses * std::max(static_cast<double>(trial.report.bytes) * kOperationsOfAByte,
                                    static_cast<double>(trial.report.flops));
  return trial;
}

class Search {
 public:
  Search(const TuneMeans& means, const TuneSettings& settings)
      : means_(means), settings_(settings), end_(means.clock() + settings.budget) {}

  TuneResult run(std::vector<Trial> trials) {
    TuneResult result;
    size_t done = 0;
    while (done < trials.size() && !over()) {
      size_t count = 0, sources = 0;
      while (done + count < trials.size() && sources < settings_.compiled_at_once) {
        sources += trials[done + count++].plan.sources.size();
      }
      const std::span<Trial> chunk(trials.data() + done, count);
      if (!compile(chunk)) break;
      codegen::TuningTable news;
      for (Trial& trial : chunk) {
        if (over()) break;
        decide(trial, news);
        result.sites.push_back(trial.report);
        ++done;
        if (settings_.each) settings_.each(result.sites.back(), done, trials.size());
      }
      result.decisions.merge(news);
      if (settings_.decided && !news.empty()) settings_.decided(news);
    }
    result.left = trials.size() - result.sites.size();
    result.stopped = settings_.stop && settings_.stop();
    return result;
  }

 private:
  bool over() const { return means_.clock() >= end_ || (settings_.stop && settings_.stop()); }

  /// Whether there was time for it.
  bool compile(std::span<const Trial> chunk) {
    std::vector<codegen::CudaSource> sources;
    for (const Trial& trial : chunk) {
      sources.insert(sources.end(), trial.plan.sources.begin(), trial.plan.sources.end());
    }
    try {
      const auto compiled = means_.compile(sources, [this](const codegen::CompileProgress& now) {
        if (settings_.progress) settings_.progress(now);
        if (over()) throw OutOfTime();
      });
      results_.clear();
      for (size_t i = 0; i < sources.size(); ++i) results_.emplace(sources[i].name, compiled[i]);
    } catch (const OutOfTime&) {
      return false;
    }
    return true;
  }

  void decide(Trial& trial, codegen::TuningTable& decisions) {
    TunedSite& report = trial.report;
    const TuningSite& site = *report.site;
    for (const KernelCall& call : trial.plan.calls) {
      const auto& error = result_of(trial.plan, call.source).error;
      std::string& rejected = report.candidates[static_cast<size_t>(call.node)].rejected;
      if (error && rejected.empty()) rejected = error->what();
    }
    std::vector<size_t> good;  // Numbers of the report's candidates.
    for (size_t i = 0; i < trial.candidates.size(); ++i) {
      if (report.candidates[i].rejected.empty()) good.push_back(i);
    }
    if (good.empty()) return;
    time(trial, good);
    const double least = report.candidates[good.front()].seconds;
    report.winner = static_cast<int>(winner_of(report));
    const double before = report.seconds_before() > 0 ? report.seconds_before() : least;
    decisions.set(site.choice().problem, site.choice().batch,
                  {report.candidates[static_cast<size_t>(report.winner)].tile, microseconds(report.seconds()),
                   microseconds(before)});
  }

  /// Compares and times the candidates `good` of the report.
  void time(Trial& trial, const std::vector<size_t>& good) {
    TunedSite& report = trial.report;
    std::vector<size_t> candidates;
    for (const size_t i : good) candidates.push_back(trial.candidates[i]);
    const CudaPlan plan = report.site->plan(candidates);
    TuneMeans::Kernels kernels;
    for (size_t s = 0; s < plan.sources.size(); ++s) kernels.push_back(result_of(plan, static_cast<int>(s)).kernel);
    const auto timer = means_.time(*report.site, plan, kernels);

    std::vector<size_t> agreeing;  // Numbers of the timer's candidates.
    for (size_t c = 0; c < good.size(); ++c) {
      if (timer->agrees(c)) {
        agreeing.push_back(c);
      } else {
        report.candidates[good[c]].rejected =
            "its results have other bits than those of " + report.candidates[good.front()].tile;
      }
    }
    const auto note = [&](int rounds) {
      const auto seconds = timer->time(agreeing, rounds);
      for (size_t i = 0; i < agreeing.size(); ++i) report.candidates[good[agreeing[i]]].seconds = median(seconds[i]);
    };
    note(1);
    double least = std::numeric_limits<double>::infinity();
    for (const size_t c : agreeing) least = std::min(least, report.candidates[good[c]].seconds);
    // The first one's time is what a decision is compared with.
    std::erase_if(agreeing, [&](size_t c) { return c != 0 && report.candidates[good[c]].seconds > kHopeless * least; });
    note(settings_.rounds);
  }

  static size_t winner_of(const TunedSite& report) {
    double least = std::numeric_limits<double>::infinity();
    const auto may_win = [](const TunedCandidate& c) { return c.rejected.empty() && c.seconds > 0; };
    for (const TunedCandidate& c : report.candidates) {
      if (may_win(c)) least = std::min(least, c.seconds);
    }
    size_t winner = report.candidates.size();
    for (size_t i = 0; i < report.candidates.size(); ++i) {
      const TunedCandidate& c = report.candidates[i];
      if (!may_win(c) || c.seconds > kTie * least) continue;
      if (winner == report.candidates.size() || c.shared_bytes < report.candidates[winner].shared_bytes) winner = i;
    }
    return winner;
  }

  const codegen::CompileResult& result_of(const CudaPlan& plan, int source) const {
    return results_.at(plan.sources[static_cast<size_t>(source)].name);
  }

  const TuneMeans& means_;
  const TuneSettings& settings_;
  double end_;
  std::map<std::string, codegen::CompileResult> results_;  // Of a chunk, by the source's name, which holds its hash.
};

}  // namespace

TuneResult tune_sites(const std::vector<TuningSite>& sites, const codegen::TuningTable& current, const TuneMeans& means,
                      const TuneSettings& settings) {
  std::vector<Trial> trials;
  for (const TuningSite& site : sites) trials.push_back(make_trial(site, current, settings.most_candidates));
  std::ranges::stable_sort(trials, std::greater(), &Trial::work);
  return Search(means, settings).run(std::move(trials));
}

}  // namespace difuse::runtime
