// Tuning as a person sees it.
#pragma once

#include <functional>
#include <string>

#include "ir/graph.h"
#include "ir/options.h"
#include "models/run/backend.h"
#include "runtime/tune/tune_step.h"

namespace difuse::models {

/// Tunes the step's kernels and says how far it is and what came of it, unless `quiet`. Takes the settings' budget and
/// `each` from the caller; the backend is a GPU.
runtime::StepTuning tune(const ir::Graph& graph, const ir::Options& environment, const Backend& backend,
                         runtime::TuneSettings settings, bool again = false, bool quiet = false);

/// "tuned: 41 kernels, 7 of them faster, 12 known before; step 10.80 ms before, 9.10 ms after".
std::string tuning_line(const runtime::StepTuning& tuning);

}  // namespace difuse::models
