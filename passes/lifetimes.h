// Which nodes read a value of a graph, and how long it must therefore be kept, when nodes run in their order.
#pragma once

#include <cstdint>
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

  /// Bytes that must be kept at each node, but for leaves and what lies inside other values. In place is not counted.
  std::vector<int64_t> live_bytes() const;

 private:
  std::vector<int>& list(ir::Value v) { return readers_[static_cast<size_t>(v.node)][static_cast<size_t>(v.result)]; }

  const ir::Graph& graph_;
  std::vector<std::vector<std::vector<int>>> readers_;  // by node and result
};

}  // namespace difuse::passes
