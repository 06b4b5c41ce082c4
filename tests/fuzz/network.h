// Random small networks of convolutions with their gradients.
#pragma once

#include <cstdint>

#include "ir/graph.h"

namespace difuse::testing {

/// Convolutions of activations, some normalised, some added to or concatenated with what came before: inputs "image"
/// and the parameters, outputs "loss" and each parameter's gradient. f32.
ir::Graph random_network(uint64_t seed);

}  // namespace difuse::testing
