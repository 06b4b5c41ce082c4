// A fused graph some of whose fusions compute values of earlier ones again, for who reads those late.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace difuse::passes {

/// How a fusion's body makes a value out of what it reads, element by element.
struct Chain {
  std::set<int> nodes;                     ///< Of the body.
  std::map<ir::Value, ir::Value> sources;  ///< What they read: values of the graph by those of the body.
};
/// Nothing where there is more between the fusion's operands, or parts of them, or what else it stores, and its result
/// than elementwise ops and what is free.
std::optional<Chain> find_chain(const ir::Graph& graph, ir::Value v);

/// A value that a fusion computes again.
struct LateCopy {
  ir::Value value;                       ///< A fusion's result that has a chain.
  int host = -1;                         ///< The fusion that runs over the value's shape.
  std::vector<ir::Value> operands = {};  ///< What the host then reads beside what it read.
  std::vector<int> readers = {};         ///< Those who then read the copy.
};

class LateCopies {
 public:
  /// The graph must outlive this.
  explicit LateCopies(const ir::Graph& graph) : graph_(graph) {}

  /// Whether there is an order in which, beside all that was added, the host has what it reads and comes before the
  /// copy's readers.
  bool is_possible(const LateCopy& copy) const;
  /// Must be possible.
  void add(const LateCopy& copy);

  /// A host has a further result for each of its copies. A copy's readers run as soon as what they read is there;
  /// everything else keeps its order.
  ir::Graph emit() const;

 private:
  struct Host {
    std::vector<ir::Value> operands;
    std::shared_ptr<const ir::Graph> body;
  };

  ir::Graph with_result(const Host& host, ir::Value v) const;
  bool needs(int node, const std::vector<int>& others) const;

  const ir::Graph& graph_;
  std::map<int, std::vector<int>> runs_after_;  // by node: others, beside those that make its operands
  std::map<int, Host> hosts_;
  std::map<std::pair<int, ir::Value>, ir::Value> reads_instead_;  // by reader and value: a further result of a host
};

}  // namespace difuse::passes
