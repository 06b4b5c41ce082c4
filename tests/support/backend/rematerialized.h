// A graph that computes again what memory could gain by.
#pragma once

#include "ir/graph.h"

namespace difuse::testing {

/// The fused graph for a GPU with all that lowers its peak computed again, however little that is.
ir::Graph rematerialized(const ir::Graph& fused);

}  // namespace difuse::testing
