// The units of a partition as they will be emitted: each a future fusion or a single node, with what it computes, what
// it reads and what others read of it. A body may hold nodes that belong to another unit: those are recomputed.
#pragma once

#include <set>
#include <unordered_map>
#include <vector>

#include "ir/graph.h"
#include "passes/fusion/partition.h"

namespace difuse::passes {

struct Unit {
  bool fusible = false;      ///< Elementwise ops and reductions, over `shape`, and perhaps a whole hero.
  bool whole = false;        ///< Has a hero that computes its result as a whole: nothing is computed again in it.
  ir::Shape shape;           ///< The iteration shape.
  int lead = -1;             ///< The node that it grew from, or its first.
  std::vector<int> owned;    ///< Node ids, increasing.
  std::set<int> recomputed;  ///< Nodes of other units that the body computes again.

  bool holds(int node) const;
};

/// Who reads a value that is computed in another unit.
struct Readers {
  std::vector<int> fusible;    ///< Units that read it element by element.
  std::vector<int> repeating;  ///< Units that read it through broadcasts.
  std::vector<int> heroes;     ///< Units of whole heroes, in the prologue, the epilogue or as a whole.
  bool others = false;         ///< Anything else: an unfused op, an output.

  bool as_a_whole() const { return others || !heroes.empty(); }
};

class Units {
 public:
  /// `may_fuse(unit)`: false dissolves the unit into its nodes.
  Units(const ir::Graph& graph, const Partition& partition, const std::vector<bool>& may_fuse);

  const ir::Graph& graph() const { return graph_; }
  int size() const { return static_cast<int>(units_.size()); }
  const Unit& unit(int u) const { return units_[static_cast<size_t>(u)]; }
  int owner(int node) const { return owner_[static_cast<size_t>(node)]; }

  /// The nodes (increasing) of the unit's body that `roots` need, of those it holds; but for `without`, which is read.
  std::vector<int> closure(int u, const std::vector<int>& roots, int without = -1) const;
  /// What nodes read that is not among them, through free nodes, in order of first use.
  std::vector<ir::Value> externals(const std::vector<int>& nodes) const;
  /// Adds nodes to what the unit computes again.
  void recompute(int u, const std::vector<int>& nodes);

  /// What the unit's body reads of others, as it will be emitted.
  std::vector<ir::Value> reads(int u) const;
  /// A unit, none of `but`, that `to` needs and that itself needs what `from` makes; -1 where there is none.
  int between(int from, int to, const std::set<int>& but = {}) const;
  /// Makes a unit part of another, which it reads or which reads it, with nothing between them. Bodies must be up to
  /// date, and are afterwards.
  void absorb(int into, int unit);

  /// The units that read a result of the node, which is another's.
  std::vector<int> reading(int node) const;
  /// Whether the unit needs what one of the others makes.
  bool needs_any(int u, const std::vector<int>& others) const;
  /// Lets unit `to` make the node in its own unit's place, of `nodes`, which it computes then. The units that still
  /// read it, none of which `to` needs, come after `to`. Stale afterwards until find_needed().
  void hand_over(int node, const std::vector<int>& nodes, int to, const std::vector<int>& readers);

  /// Which values must exist outside their unit and who reads them. Stale after `recompute` until called again.
  void find_needed();
  /// The unit's nodes that are needed, in order; empty: the unit is dead.
  const std::vector<int>& body(int u) const { return bodies_[static_cast<size_t>(u)]; }
  bool needed(ir::Value v) const { return readers_.contains(v); }
  /// nullptr when nobody outside its unit reads the value.
  const Readers* readers(ir::Value v) const;

 private:
  void add_unit(Unit unit);
  void order_units();
  /// The units that the unit's body needs, itself included, but for what only `without` needs.
  std::set<int> needs(int u, int without) const;
  const ir::Graph& graph_;
  std::vector<Unit> units_;
  std::vector<int> owner_;
  std::vector<int> order_;  // units, operands first
  std::vector<std::vector<int>> bodies_;
  std::unordered_map<ir::Value, Readers, ir::ValueHash> readers_;
};

}  // namespace difuse::passes
