// Puts the casts of a precision into an f32 graph, at named rounding points only.
//
// Before: a graph in f32, gradients included. After: the same graph in which
// - every operand that conv, matmul, attention or attention_grad multiplies is rounded: to bf16, which is then the
//   operand's dtype, or to tf32 (round_tf32, f32 -> f32). Results stay f32, as does attention's log-sum-exp.
// - a rounded image, wherever it is read, is read as it was rounded (statistics, bias gradients, residuals; other ops
//   than contractions through a cast back to f32, which is exact), so that it is stored once and the backward sees the
//   numbers that the forward used. These are the values that are rounded:
//   - a computed image that is an operand of a contraction (bf16 and tf32);
//   - bf16 alone, the residual stream: what a contraction makes with all that is added to it, sums of such images, and
//     averages of them (rounding_points.h has the rule).
//
// An image here has at least three axes and at least 8 channels. Pictures (fewer channels: pixels, noise, the model's
// answer) are rounded for the contraction alone, as are matrices, parameters, sums over the batch, and statistics:
// other readers see every bit. Weight gradients, softmax, loss and optimizer are never rounded, and what leaves the
// graph (outputs, next states) is not either.
//
// Movement: a rounded image is moved in its 16 bits: concat, slice, reverse, upsample, transpose, reshape, pad, gather
// and repack stand before the cast back to f32, and an operand's rounding before a movement that makes it no smaller.
// avg_pool computes and reads f32. When the views of one flat vector that are rounded hold half of it or more, and are
// several, the whole vector is rounded by one op and the views are of that: offsets count elements, so the slices of
// ParameterLayout, at multiples of 256 bytes in f32, lie at multiples of 128 bytes in bf16.
//
// Legal always: rounding is elementwise, so it may pass any movement. No number is rounded twice: casts that are there
// already are kept and count. A graph that holds fusions is left as it is: it has been rounded, or chose not to be.
// Rounding: bf16 to nearest, ties to even; tf32 to nearest, ties away from zero.
// Fuel: one for each contraction, for each rounded image and for each vector.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "passes/pass.h"

namespace difuse::passes {

enum class Precision : uint8_t { f32, tf32, bf16 };

std::string_view to_string(Precision precision);
std::optional<Precision> parse_precision(std::string_view text);

/// f32: changes nothing.
PassResult set_precision(const ir::Graph& graph, PassContext& context, Precision precision);

}  // namespace difuse::passes
