// The graph: a pure function from inputs and state to outputs and the next state.
//
// Nodes are immutable and only ever appended, so node order is a topological order and is the order of execution.
// Two nodes with the same op, operands and attributes are one node (hash-consing), so a rewrite never has to look for
// common subexpressions. An edge is a Value: a node and which of its results. A Fusion's body is a Graph of its own.
#pragma once

#include <compare>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/attrs.h"
#include "ir/types.h"

namespace difuse::ir {

enum class Op : uint8_t {
#define DIFUSE_OP(name, attrs, least, most, results, traits) name,
#include "ir/ops.def"
};

/// One result of one node.
struct Value {
  int32_t node = -1;
  int32_t result = 0;

  bool valid() const { return node >= 0; }
  auto operator<=>(const Value&) const = default;
};

struct ValueHash {
  size_t operator()(const Value& v) const {
    return std::hash<int64_t>()((static_cast<int64_t>(v.node) << 8) ^ v.result);
  }
};

struct Node {
  Op op;
  std::vector<Value> operands;
  Attrs attrs;
  std::vector<Type> types;  ///< One per result.

  template <class A>
  const A& as() const {
    return std::get<A>(attrs);
  }
};

/// A result of the graph, or the next value of the state of that name.
struct NamedValue {
  std::string name;
  Value value;
  bool operator==(const NamedValue&) const = default;
};

class Graph {
 public:
  explicit Graph(std::string name = "main") : name_(std::move(name)) {}

  const std::string& name() const { return name_; }

  /// Appends a node, or returns the equal one that is already there. Result types are inferred; throws Error with the
  /// arithmetic when the operands do not fit the op. The value is the node's first result.
  Value add(Op op, std::vector<Value> operands, Attrs attrs = NoAttrs{});

  /// Appends an output. Names are unique among outputs.
  void set_output(std::string name, Value value);
  /// Says what the state, or what is carried, of that name becomes after the step. The type must be its own.
  void set_update(std::string name, Value value);

  int size() const { return static_cast<int>(nodes_.size()); }
  const Node& node(int id) const { return nodes_[static_cast<size_t>(id)]; }
  const Node& node(Value v) const { return node(v.node); }
  const Type& type(Value v) const { return node(v).types[static_cast<size_t>(v.result)]; }

  const std::vector<NamedValue>& outputs() const { return outputs_; }
  const std::vector<NamedValue>& updates() const { return updates_; }
  /// The `input` (or `state`) node of that name; an invalid Value where there is none.
  Value find_input(std::string_view name) const { return find_leaf(Op::input, name); }
  Value find_state(std::string_view name) const { return find_leaf(Op::state, name); }
  /// What a step replaces: the `state` or `carry` node of that name; an invalid Value where there is none.
  Value find_replaced(std::string_view name) const;
  /// Node ids of all inputs or states, in node order.
  std::vector<int> leaves(Op op) const;

  /// For each node, the ids of the nodes that read it (each once, increasing).
  std::vector<std::vector<int>> users() const;
  /// For each node, whether an output or an update depends on it.
  std::vector<bool> live() const;

 private:
  void require_value(Value v, std::string_view reader) const;
  Value find_leaf(Op op, std::string_view name) const;

  std::string name_;
  std::deque<Node> nodes_;
  std::unordered_map<std::string, int> by_key_;  // the node's text, for hash-consing
  std::vector<NamedValue> outputs_, updates_;
};

/// Copies the live nodes of `from` into a new graph. `emit` is called for each node in order with its operands already
/// mapped into the new graph and returns what stands for the node's results there (one Value per result); the default
/// adds the same node again. This is the one way graphs are rewritten; dead code disappears and equal nodes merge.
using Emit = std::function<std::vector<Value>(Graph& to, int id, const Node& node, const std::vector<Value>& operands)>;
Graph rebuild(const Graph& from, const Emit& emit);
/// The nodes of `order` alone, each behind its operands, in that order; all outputs and updates of `from` are of them.
Graph reordered(const Graph& from, std::span<const int> order);
/// Adds `node` with other operands; one Value per result.
std::vector<Value> copy_node(Graph& to, const Node& node, const std::vector<Value>& operands);

}  // namespace difuse::ir
