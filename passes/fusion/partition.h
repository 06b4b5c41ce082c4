// The graph with some of its nodes drawn together: which nodes share a unit, and whether two units may become one.
//
// A widening cast is on no path: who reads it reads what it widens, as each body has its own copy. Nor is what repeats
// a row's reduction over the row: who reads it reads the reduction.
#pragma once

#include <vector>

#include "ir/graph.h"

namespace difuse::passes {

class Partition {
 public:
  /// Every node is a unit of its own.
  explicit Partition(const ir::Graph& graph);

  int unit_of(int node) const { return unit_of_[static_cast<size_t>(node)]; }
  /// Node ids, increasing; empty once the unit has been merged into another.
  const std::vector<int>& members(int unit) const { return members_[static_cast<size_t>(unit)]; }
  /// The live nodes that read the node's results, perhaps through what is on no path.
  const std::vector<int>& users(int node) const { return users_[static_cast<size_t>(node)]; }
  bool live(int node) const { return live_[static_cast<size_t>(node)]; }

  /// A node on a path that leaves one of the two units and comes to the other through a third, which would then have
  /// to run both before and after the merged unit; -1 when there is none and the two may merge.
  int between(int a, int b) const;
  /// Draws b into a; nothing may lie between them.
  void merge(int a, int b);

 private:
  int on_path(int from, int to) const;

  void reorder(int merged, int low, int high);

  const ir::Graph& graph_;
  const std::vector<bool> live_;
  std::vector<std::vector<int>> users_;
  std::vector<int> unit_of_;
  std::vector<std::vector<int>> members_;
  std::vector<int> order_, position_;  // the units so that every edge goes forward, and where each stands
  mutable std::vector<int> seen_;      // the search that last came to the unit
  mutable int search_ = 0;
};

}  // namespace difuse::passes
