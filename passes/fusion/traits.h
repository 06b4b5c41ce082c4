// Who may be in a fusion, said by trait.
#pragma once

#include <span>
#include <vector>

#include "ir/graph.h"

namespace difuse::passes {

/// A kind of node that a fusion grows from. Rows are tried in order: the first kind claims its neighbours first. A new
/// hero is a new row.
struct HeroRule {
  ir::Hero hero;
  bool (*is_hero)(const ir::Node& node);
  /// What joins: the readers of its result alone (an epilogue), or whoever runs over the same shape.
  bool epilogue_only;
};
std::span<const HeroRule> hero_rules();
/// What a fusion of these nodes grew from.
ir::Hero hero_of(const ir::Graph& graph, std::span<const int> nodes);

/// A fusion's.
inline const ir::Graph& body_of(const ir::Node& fusion) { return *fusion.as<ir::FusionAttrs>().body; }

/// Heroes that compute a result as a whole, not element by element: contractions, and averages.
bool is_whole(const ir::Node& node);
/// The operands of a convolution or product that its kernel reads tile by tile, and may compute on the way in: the
/// image, or its gradient, or of a filter's gradient both. None of other nodes.
std::vector<size_t> streamed_operands(const ir::Node& node);
/// Whether one of the body's nodes is a contraction.
bool has_contraction(const ir::Graph& body);
/// Elementwise ops but those that are free.
bool is_pointwise(const ir::Graph& graph, const ir::Node& node);
/// Reductions of one tensor. What finishes several tensors' partial results (group_finish) is none.
bool is_reduction(const ir::Node& node);
/// Reductions that leave a part for each strip of an image (ir/strips.h): whoever computes whole strips has all that a
/// part is made of.
bool is_of_strips(const ir::Node& node);
/// Sums over all pixels of an image, of each channel, perhaps over all images too: strips' sums, added.
bool sums_pixels(const ir::Graph& graph, const ir::Node& node);
/// Movement that puts its result together of operands whose elements stay neighbours: a concatenation, an upsampled
/// image.
bool keeps_neighbours(const ir::Node& node);
/// What one loop over elements computes: an elementwise op, a reduction of one tensor, or a fusion of such.
bool is_loop(const ir::Graph& graph, const ir::Node& node);
/// Casts of a 16-bit float to f32: exact.
bool is_widening(const ir::Graph& graph, const ir::Node& node);
/// Costs nothing to have in a body: a broadcast is an index, a constant a number, a widening cast a way to load. Each
/// body gets its own copy.
bool is_free(const ir::Graph& graph, const ir::Node& node);
/// Whether a body that holds `reader` holds a copy of its operand v too: of what is free, but for the operands that a
/// contraction reads as a whole.
bool is_copied(const ir::Graph& graph, const ir::Node& reader, ir::Value v);
/// The value that v is a widening cast of, or v: who reads one element by element reads the other so.
ir::Value before_widening(const ir::Graph& graph, ir::Value v);
/// A sum or maximum over the trailing axes, of rows so short that one warp, or one core's L1, holds one.
bool is_row_reduction(const ir::Graph& graph, const ir::Node& node);
/// A row reduction's result at each element of its row: who runs over rows has it as soon as the row is read.
bool is_row_repeat(const ir::Graph& graph, const ir::Node& node);
/// What a body that reads v element by element must have: the value before a widening cast, the reduction whose result
/// a row repeats, or v.
ir::Value source_of(const ir::Graph& graph, ir::Value v);
/// Whether v, or its widening cast, is an operand of the node.
bool reads(const ir::Graph& graph, int id, ir::Value v);

/// The shape that the node's loop runs over: its operand's when a reduction, else its (first) result's.
const ir::Shape& iteration_shape(const ir::Graph& graph, const ir::Node& node);

}  // namespace difuse::passes
