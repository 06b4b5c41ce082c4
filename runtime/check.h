// Compares what a compiled plan computes, node by node, with the fp64 reference of each node's body.
//
// The reference gets the very operand values that the device read, so an error is that of one node alone: nothing adds
// up from node to node, and a wrong kernel is named.
#pragma once

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "runtime/executor.h"

namespace difuse::runtime {

/// The worst result of one node.
struct NodeCheck {
  int node = -1;
  std::string name;      ///< Says what the node computes.
  double error = 0;      ///< max|got - want| / max|want|.
  double tolerance = 0;  ///< What that may be.
  std::string rule;      ///< Why so much: "f32", "bf16", "tf32", "f32, ill-conditioned".
  bool passed() const { return error <= tolerance; }
  /// Of the tolerance; infinite where none is allowed and there is an error.
  double share() const { return error == 0 ? 0 : tolerance == 0 ? INFINITY : error / tolerance; }
};

/// Runs one step and gives the checks in the order of the step; `each`, where given, is called as soon as one is made.
///
/// Tolerances, of the largest |value| of the result:
/// - f32: 1e-5.
/// - bf16 (or f16) anywhere among operands, results or inside the body: 1e-5 and one step of that format at the largest
///   value (2^-8 to 2^-7 of it): what is next to a rounding boundary may fall to either side.
///   Attention is allowed two: its probabilities, operands of its second product, are rounded as well.
/// - tf32: 1e-5 and one step of tf32 at the largest value (2^-11 to 2^-10 of it), for the same reason.
/// - A result beyond that is compared once more with what the body does to a change of the last f32 bit of its
///   operands: 32 times that is allowed. A sum that cancels (the gradient of a bias before a norm is zero by
///   construction) has nothing but rounding in it.
/// Integers must be equal. What a plan copies into a state must have its bits.
std::vector<NodeCheck> check_step(Executor& executor, const std::function<void(const NodeCheck&)>& each = {});

}  // namespace difuse::runtime
