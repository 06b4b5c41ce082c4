// Fewer dimensions for the same elements.
#pragma once

#include "ir/graph.h"

namespace difuse::codegen::cuda {

/// Before: a body of elementwise ops, broadcasts, constants, random draws and reduce_* over one iteration shape,
/// outputs included. After: the same over a shape in which every two neighbouring dimensions that no broadcast, no
/// reduction and no draw (the first is the samples') tells apart are one; memory is the same, so operands and results
/// keep their places. Kernels then have shorter index arithmetic and longer runs, and bodies that differ in nothing
/// else become one kernel. Any other body stays as it is.
ir::Graph collapsed(const ir::Graph& body);

}  // namespace difuse::codegen::cuda
