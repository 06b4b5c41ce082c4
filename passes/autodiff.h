// Reverse-mode differentiation.
//
// Before: a graph with a scalar f32 loss. After: the same graph with, for each value asked for, dLoss/dvalue appended,
// of that value's own type. Each op's rule lives with the op (ir/ops/). Nodes that no asked-for value reaches get no
// gradient; an op without a rule (a comparison, a random draw, an index) passes none on, as its derivative is zero.
// Cotangents of a value with several readers are added in reverse order of the readers, so the sum's order is fixed.
#pragma once

#include <span>
#include <vector>

#include "ir/builder.h"

namespace difuse::passes {

/// One gradient per entry of `wanted`; a zero constant where the loss does not depend on it. The nodes of `held` count
/// as constants: nothing passes through them to their operands. Throws Error when `loss` is not a scalar f32 or when a
/// rule cannot be applied.
std::vector<ir::Value> differentiate(ir::Builder& build, ir::Value loss, std::span<const ir::Value> wanted,
                                     std::span<const ir::Value> held = {});

}  // namespace difuse::passes
