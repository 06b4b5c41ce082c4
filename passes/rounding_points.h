// Which images a precision rounds for all who read them (precision.h).
//
// A rule by trait, in node order. A term is
// - an image that a contraction makes (convolution, attention; not a weight's gradient),
// - a computed image that a contraction reads,
// - an image cast back to f32,
// - a movement of terms, or an average of one,
// - the sum of a term and anything.
// What a contraction makes and what is added to it, one after the other, each the only reader of the one before, is
// computed on its accumulators; it is added to by broadcasts and by terms that are stored. A term is rounded
// - when a contraction reads it;
// - unless its only reader adds it to something: sums are rounded where they end, not at each addend. But what
//   a contraction makes is rounded before it is added to something that is not stored, as two kernels make the two; of
//   two such results that are added, the one made last takes in the other.
#pragma once

#include <vector>

#include "ir/graph.h"
#include "ir/op.h"

namespace difuse::passes {

/// Operands that a contraction multiplies, by number; none for other ops. Statistics that it only reads are not among
/// them.
std::vector<size_t> multiplied_operands(const ir::Node& node);

/// Whether the op moves its operands' elements and computes nothing.
bool only_moves(const ir::Node& node);
/// The operands whose elements such an op moves.
std::vector<ir::Value> moved_operands(const ir::Node& node);

class RoundingPoints {
 public:
  /// `whole_stream` false: the operands of contractions alone.
  RoundingPoints(const ir::Graph& graph, bool whole_stream);

  bool has(ir::Value v) const { return rounded_[static_cast<size_t>(v.node)] && v.result == 0; }

 private:
  struct Kind {
    bool operand = false;  ///< A contraction reads it, perhaps moved.
    bool term = false;
    int accumulates = -1;  ///< The contraction on whose accumulators it is computed.
  };

  bool is_image(ir::Value v) const;
  void mark_operand(ir::Value v);
  Kind classify(int id) const;
  bool continues(ir::Value accumulator, ir::Value other) const;
  bool is_pending(ir::Value v) const;
  bool ends(int id) const;
  const Kind& kind(ir::Value v) const { return kinds_[static_cast<size_t>(v.node)]; }

  const ir::Graph& graph_;
  std::vector<std::vector<int>> users_;  ///< Of live nodes.
  std::vector<bool> leaves_graph_;       ///< Outputs and updates.
  std::vector<Kind> kinds_;
  std::vector<bool> rounded_;
};

}  // namespace difuse::passes
