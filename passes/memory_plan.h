// Places every value of a graph in one arena.
//
// Nodes run in order, one after the other; a value lives from the node that makes it to the last that reads it (outputs
// to the end). States, inputs, constants and literals keep their place for good. The rest reuse memory as soon as it is
// free: greedy, largest first, at the lowest offset that no value alive at the same time occupies.
//
// Values that need no bytes of their own:
// - reshape and view lie where their operand lies (view: plus its offset);
// - an operand of pack is made in its slice of the packed vector, free for others until then, unless it is a leaf, lies
//   inside another value or is already packed elsewhere: then the pack node copies it (the placements differ);
// - a result of an elementwise fusion takes the place of an operand of the same size that dies there (in place);
// - the next value of a state is made in the state's own place when every other reader of the state runs before (or it
//   is elementwise in it); otherwise it is copied there after the last node (`state_copies`). What is carried
//   (carry.h) keeps its place for good and is replaced likewise.
//
// Nodes that are the same in every step and come before all others (hoist.h) run when what they read has been written,
// and not in every step: what others read of them keeps its place for good, like a state. What only they read is free
// for others as usual: no value of a step lives while they run.
//
// Nodes that run at once (`together`) all read before any of them is done, and all write before any of them is read:
// what one of them reads lives until the last of them, what one makes lives from the first, and none works in place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace difuse::passes {

inline constexpr int64_t kArenaAlignment = 256;  ///< Bytes; every value of its own starts at a multiple.

struct Placement {
  int64_t offset = -1;  ///< Bytes from the arena's start; -1 when nothing reads the value.
  int64_t bytes = 0;
  bool placed() const { return offset >= 0; }
  bool operator==(const Placement&) const = default;
};

struct StateCopy {
  ir::Value from;
  std::string state;
};

/// Nodes from `first` to `last`, both included; none of them reads another's result.
struct NodeRange {
  int first = 0, last = 0;
  bool operator==(const NodeRange&) const = default;
};

struct MemoryPlan {
  int64_t arena_bytes = 0;
  int64_t state_bytes = 0;                         ///< Of them, states: what a checkpoint holds.
  int64_t tensor_bytes = 0;                        ///< What all values would take side by side.
  std::vector<std::vector<Placement>> placements;  ///< [node][result]
  std::vector<StateCopy> state_copies;
  std::vector<NodeRange> together = {};  ///< In order: nodes that may run at once.
  int once_end = 0;                      ///< Nodes before this one do not run in every step.

  const Placement& at(ir::Value v) const {
    return placements[static_cast<size_t>(v.node)][static_cast<size_t>(v.result)];
  }
};

struct MemoryOptions {
  /// false: every value gets its own bytes (but for reshape and view), nothing is in place; the tests' yardstick.
  bool reuse = true;
  std::vector<NodeRange> together = {};  ///< Nodes that run at once, in order; ranges do not overlap.
  /// false: every step runs every node.
  bool once = true;
};

/// Throws Error when two states exchange their old values, or an output is the old value of a state that is replaced:
/// neither has a place to be kept in. A fusion must load an element before it stores one (in_place.h).
MemoryPlan plan_memory(const ir::Graph& graph, const MemoryOptions& options = {});

/// Whether the node's result lies where its operand lies, so that there is nothing to run.
bool is_alias(const ir::Graph& graph, const MemoryPlan& memory, int id);

}  // namespace difuse::passes
