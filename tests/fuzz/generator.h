// Random small graphs, and the shrinker that makes a failing one small enough to read.
#pragma once

#include <cstdint>
#include <functional>

#include "ir/graph.h"

namespace difuse::testing {

inline constexpr uint64_t kFirstSeed = 1000;

/// A graph of about `size` operations over images, vectors and a packed state, of every op family. Values stay near 1,
/// and comparisons, floors and narrow casts read inputs only, so that an f32 run differs from fp64 by rounding alone.
ir::Graph random_graph(uint64_t seed, int size);

/// The smallest graph found for which `fails` still holds: drops outputs and updates, moves outputs to earlier
/// values, and replaces nodes by inputs or by their operands of the same type. `fails(graph)` must hold.
ir::Graph shrink(ir::Graph graph, const std::function<bool(const ir::Graph&)>& fails);

}  // namespace difuse::testing
