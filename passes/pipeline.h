// The one place that says which passes run, in which order and why, and the machinery around them: every pass is
// verified, dumped, timed, may be switched off by name, draws on the common fuel, and is checked for an honest
// "changed".
#pragma once

#include <ostream>
#include <span>
#include <vector>

#include "ir/options.h"
#include "passes/fusion/choices.h"
#include "passes/fusion/report.h"
#include "passes/pass.h"
#include "passes/precision.h"

namespace difuse::passes {

struct PipelineOptions {
  const ir::Options* options = nullptr;  ///< nullptr: the defaults.
  bool fuse = true;                      ///< false: every op stays a node of its own.
  Precision precision = Precision::f32;
  FusionSettings fusion = {};      ///< What may be computed together, and where the device can.
  std::ostream* log = nullptr;     ///< Where options->debug prints; nullptr: nowhere.
  FusionReport* report = nullptr;  ///< Filled when given.
};

/// The passes in order, those that the options leave out excepted. `report` may be nullptr and must outlive the passes.
std::vector<Pass> default_passes(const PipelineOptions& options, FusionReport* report);

/// Runs `passes` in order. Throws Error when options disable a pass that does not exist (wrong usage), when a dump
/// cannot be written, when a pass breaks the graph, and when a pass is wrong about having changed it.
ir::Graph run_passes(ir::Graph graph, std::span<const Pass> passes, const ir::DeviceSpec& device,
                     const PipelineOptions& options);

/// run_passes over default_passes: a graph as models/ builds it, gradients included -> the graph that codegen lowers.
/// Same inputs, states, outputs and updates. Names that may be disabled are those of all passes, whether or not the
/// options leave them out.
ir::Graph run_pipeline(ir::Graph graph, const ir::DeviceSpec& device, const PipelineOptions& options);

}  // namespace difuse::passes
