// Writes the fused graph.
//
// Order: a fusion of elementwise ops and reductions runs as soon as the last of its operands is there, so that it finds
// them in cache and they die soonest; everything else keeps its order.
#pragma once

#include "passes/fusion/report.h"
#include "passes/fusion/units.h"

namespace difuse::passes {

/// `units` must be up to date (find_needed). A fusible unit of one node that gains nothing stays a plain node.
ir::Graph emit(const Units& units, FusionReport& report);

/// The body that the unit has when it holds these nodes (increasing): its inputs are externals(nodes), its outputs what
/// others need of the nodes that the unit owns, and all results of `more`.
ir::Graph body_of(const Units& units, int u, const std::vector<int>& nodes, const std::vector<int>& more = {});

/// Whether a fusion of these nodes is more than the one node it holds: it has another, or a broadcast or constant that
/// need not exist outside.
bool is_worth_a_fusion(const ir::Graph& graph, const std::vector<int>& nodes);

}  // namespace difuse::passes
