// Which nodes read a value of a graph, and how long it must therefore be kept, when nodes run in their order.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ir/graph.h"

namespace difuse::passes {

class Lifetimes {
 public:
  /// The graph must outlive this.
  explicit Lifetimes(const ir::Graph& graph);

  /// The live nodes that read the value, each once, increasing; last the graph's size, where an output or an update is
  /// the value.
  const std::vector<int>& readers(ir::Value v) const {
    return readers_[static_cast<size_t>(v.node)][static_cast<size_t>(v.result)];
  }
  /// How long a reader needs what it reads: a view (a reshape, say) for as long as itself is read.
  int read_until(int reader) const;
  /// The last node that needs the value; the node that makes it where there is none.
  int last_read(ir::Value v) const;

  /// What must be kept at each node, as `bytes` counts a value's, but for leaves and what lies inside other values.
  /// What is made in the place of a node's last operands (in_place.h) needs none at that node.
  std::vector<int64_t> live_bytes(const std::function<int64_t(const ir::Type&)>& bytes) const;

 private:
  std::vector<bool> made_in_place(int id) const;
  std::vector<int>& list(ir::Value v) { return readers_[static_cast<size_t>(v.node)][static_cast<size_t>(v.result)]; }

  const ir::Graph& graph_;
  std::vector<std::vector<std::vector<int>>> readers_;  // by node and result
};

}  // namespace difuse::passes
