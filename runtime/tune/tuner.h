// runtime/tune/ finds out which of its candidates makes each kernel the fastest. What must not live here: which
// candidates there are (codegen/cuda/emit/) and how decisions are kept (codegen/tune/).
//
// This file: the search itself, which knows neither GPU nor compiler.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/cuda/tuning_site.h"
#include "codegen/jit/compiler.h"
#include "codegen/tune/table.h"
#include "runtime/tune/prologue_search.h"

namespace difuse::runtime {

/// Compiled candidates of one site, ready to run.
class Timer {
 public:
  virtual ~Timer() = default;
  /// Runs a candidate and compares all that it wrote, bit for bit, with what candidate 0 writes from the same operands.
  virtual bool agrees(size_t candidate) = 0;
  /// Seconds of each of these candidates' kernel: `rounds` of them, measured in turns.
  virtual std::vector<std::vector<double>> time(std::span<const size_t> candidates, int rounds) = 0;
};

struct TuneMeans {
  using Kernels = std::vector<std::shared_ptr<const codegen::CompiledKernel>>;

  /// As KernelCompiler::compile.
  std::function<std::vector<codegen::CompileResult>(std::span<const codegen::CudaSource>,
                                                    const codegen::KernelCompiler::Progress&)>
      compile;
  /// For the candidates of a site: its plan of them and the kernels of the plan's sources.
  std::function<std::unique_ptr<Timer>(const codegen::cuda::TuningSite&, const codegen::cuda::CudaPlan&,
                                       const Kernels&)>
      time;
  /// Seconds since any moment.
  std::function<double()> clock;
};

struct TunedCandidate {
  std::string tile;
  double seconds = 0;  ///< The median; 0 where it was not timed.
  int64_t shared_bytes = 0;
  std::string rejected;  ///< Why it may not win: what the compiler said, or that its bits are wrong.
};

struct TunedSite {
  const codegen::cuda::TuningSite* site = nullptr;
  int64_t bytes = 0, flops = 0;            ///< Of the kernel.
  std::vector<TunedCandidate> candidates;  ///< The one that the plan had so far first, then by estimate.
  int winner = -1;                         ///< -1: none could be timed.

  double seconds() const { return candidates[static_cast<size_t>(winner)].seconds; }
  double seconds_before() const { return candidates.front().seconds; }
};

struct TuneSettings {
  bool tiles = true, prologues = true;                      ///< What is tuned, where a whole step is.
  double budget = std::numeric_limits<double>::infinity();  ///< Seconds; what is decided by then counts.
  size_t most_candidates = 12;                              ///< Of a site; 8 to 16 find nearly all that there is.
  int rounds = 11;
  size_t compiled_at_once = 256;  ///< Candidates, at least; the budget is looked at in between.
  std::function<bool()> stop{};   ///< Asked often; true: no more.
  std::function<void(const TunedSite&, size_t done, size_t total)> each{};  ///< Called for each that was tried.
  std::function<void(const TunedPrologue&, size_t done, size_t total)> each_prologue{};
  std::function<void(const codegen::TuningTable& news)> decided{};  ///< What is new since the last call.
  codegen::KernelCompiler::Progress progress{};
};

struct TuneResult {
  codegen::TuningTable decisions;
  std::vector<TunedSite> sites;  ///< Those that were tried, those with the most work first.
  size_t left = 0;               ///< Sites that were not, for lack of time.
  bool stopped = false;          ///< By `stop`.
};

/// For each site: the first candidates by estimate are compiled, each one's results compared with those of the
/// candidate that `current` (or else the estimate) names, and those that agree timed. The least median wins; among
/// those within half a percent of it the one with the least shared memory. Candidates beyond 1.3 times the best of a
/// first round are not timed on.
///
/// A candidate that does not compile or computes other bits is rejected with its reason; where the current one does not
/// compile, the next takes its place. Throws what `time` throws.
TuneResult tune_sites(const std::vector<codegen::cuda::TuningSite>& sites, const codegen::TuningTable& current,
                      const TuneMeans& means, const TuneSettings& settings);

}  // namespace difuse::runtime
