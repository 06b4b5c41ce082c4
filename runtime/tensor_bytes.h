// Numbers as the bytes of a tensor, and back.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ir/graph.h"
#include "ir/types.h"

namespace difuse::runtime {

/// Fills `to`, a whole number of `dtype` elements, with `numbers`, each rounded to nearest; a single number fills all.
void encode(std::span<const double> numbers, ir::DType dtype, std::span<std::byte> to);
std::vector<double> decode(std::span<const std::byte> from, ir::DType dtype);

/// The bytes of a constant or a literal.
std::vector<std::byte> leaf_bytes(const ir::Node& node);

}  // namespace difuse::runtime
