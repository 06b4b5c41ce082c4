// The graph as a drawing.
#pragma once

#include <string>

#include "ir/graph.h"

namespace difuse::ir {

/// Graphviz source: a box per node, round a fusion's body a frame, along each edge the type of the value that it
/// carries. Operands of a fusion go straight to those who read them in its body.
std::string to_dot(const Graph& graph);

}  // namespace difuse::ir
