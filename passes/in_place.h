// Which operands of a node its results may overwrite.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace difuse::passes {

/// What a fusion's body runs over: a contraction's result, else the largest shape in it, but for what is sliced.
ir::Shape iteration_shape(const ir::Graph& body);

/// What one node allows. A pair (operand, result) is allowed when element i of the operand is read only for what is
/// written at element i, both have the same shape and the same bytes an element. The node must read an element before
/// it writes it, in one pass: a fusion with channel_moments (mean first, then deviations) allows nothing, nor does one
/// whose body reads a reduction again. In a contraction's epilogue, whose values are at hand as often as they are
/// needed, that is so for the operands that only the epilogue reads, and for a reduction through a result alone.
class InPlace {
 public:
  InPlace(const ir::Graph& graph, int id);

  bool allows(int operand, int result) const;

 private:
  const ir::Graph& graph_;
  const ir::Node& node_;
  std::vector<bool> operands_, results_;  // may be overwritten; covers the whole iteration shape
};

}  // namespace difuse::passes
