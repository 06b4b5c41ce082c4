// The oracle: runs any graph on the CPU in fp64. Every value is a double, rounded only by an explicit cast node (and
// round_tf32). Simple rather than fast; one parallel loop per op.
#pragma once

#include <map>
#include <string>

#include "ir/graph.h"
#include "ir/op.h"

namespace difuse::ir {

using TensorMap = std::map<std::string, Tensor>;

struct ReferenceResult {
  TensorMap outputs;
  TensorMap states;  ///< Every state after the step: updated, or as it came.
};

/// Throws Error naming an input or state that is missing or has another type than the graph's.
ReferenceResult run_reference(const Graph& graph, const TensorMap& inputs, const TensorMap& states);

/// The error of a comparison: max|a-b| / max(max|b| of the tensor, 1e-3 x largest), where `largest` is the largest |b|
/// over the set compared, so that a gradient that is zero by construction does not count rounding noise as an error.
/// A non-finite element that is not equal on both sides gives infinity.
double relative_error(std::span<const double> a, std::span<const double> b, double largest = 0);

/// Rounds to the nearest value of `dtype`, ties to even; integers truncate towards zero.
double round_to(double value, DType dtype);

}  // namespace difuse::ir
