// What a body finishes of an image's partial results before it repeats that over the image: a group_finish, sums of the
// parts that another kernel left of an image's channels, and elementwise ops over short rows that are reduced
// (reduction/rows.cpp), such as a group's part of a norm's gradient.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph.h"

namespace difuse::codegen::cuda {

class FinishedParts {
 public:
  /// `body` must outlive it.
  explicit FinishedParts(const ir::Graph& body);

  /// All that is made: each of finishes' two results, sums, and row_results, in the order in which they need another.
  const std::vector<ir::Value>& made() const { return made_; }
  const std::vector<int>& finishes() const { return finishes_; }  ///< Nodes.
  const std::vector<int>& sums() const { return sums_; }          ///< Nodes.
  const std::vector<ir::Value>& row_results() const { return row_results_; }

  /// Which of made() the value is, in this shape or another; made().size() where it is none.
  size_t number(ir::Value v) const;
  /// Of one image.
  int64_t elements(size_t made) const;

  /// The body with the first `count` of made() as inputs, named from `operand` on.
  ir::Graph with_inputs(size_t operand, size_t count) const { return with_inputs(operand, count, nullptr); }
  /// What is computed of rows, of what is made before, which are inputs likewise; results are row_results().
  ir::Graph rows(size_t operand) const;
  /// Whether each group_finish reads tensors in memory, rows can be statements (emit/finishes.h), and all are of so
  /// many images.
  bool accepts(int64_t images) const;

 private:
  bool is_row(ir::Value v) const { return rows_[static_cast<size_t>(v.node)]; }
  bool is_read_outside(int id) const;
  ir::Value before_reshape(ir::Value v) const;
  ir::Graph with_inputs(size_t operand, size_t count, std::vector<ir::Value>* rows) const;

  const ir::Graph& body_;
  std::vector<bool> rows_;  // by node: computed of a row's reduction
  std::vector<int> finishes_, sums_;
  std::vector<ir::Value> made_, row_results_;
};

}  // namespace difuse::codegen::cuda
