// Tunes the kernels of one graph on a GPU, and which images they compute on the way, and keeps what was decided.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "codegen/cuda/tuning_site.h"
#include "ir/options.h"
#include "runtime/compile.h"
#include "runtime/target.h"
#include "runtime/tune/tuner.h"

namespace difuse::runtime {

struct StepTuning {
  std::vector<codegen::cuda::TuningSite> sites;  ///< Those without a decision before; the result points to them.
  size_t known = 0;                              ///< Problems and images that had one.
  TuneResult result;
  PrologueResult prologues;
  std::filesystem::path path;              ///< Where the decisions are kept.
  bool kept = false;                       ///< Whether they could be.
  double step_before = 0, step_after = 0;  ///< Seconds of a step, medians; 0 where the two were not compared.
  std::string not_compared;                ///< Why not, if they should have been.
  bool is_better() const { return step_before == 0 || step_after < step_before; }
};

/// Tunes what the decisions of tuning_store do not know, or, `again`, all. The target is a GPU. Where `compiling`
/// leaves it to decisions which contractions compute the image that they read, tiles of such kernels are tuned as well,
/// in three fifths of the budget, and then which of them there are.
///
/// Decisions are kept every so often. In the end the whole step is timed with the decisions of before and with the new
/// ones, by turns; where the new are not faster, those of before become the decisions instead. A search that was
/// stopped keeps what it found without that.
StepTuning tune_step(const ir::Graph& graph, const ir::Options& options, const Target& target,
                     const CompileSettings& compiling, const TuneSettings& settings, bool again = false);

/// Fills inputs and states with numbers above 0 and near it (integers: 0), on which a step can be timed.
void write_timing_values(Executor& executor);

}  // namespace difuse::runtime
