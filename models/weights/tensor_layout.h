// How a parameter's axes lie here and in PyTorch's files.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ir/attrs.h"
#include "ir/types.h"

namespace difuse::models {

/// Our shape as PyTorch has it: [K, R, S, C] becomes [K, C, R, S] (transposed convolutions [in, R, S, out] become [in,
/// out, R, S] by the same rule), everything else stays.
std::vector<int64_t> file_shape(const ir::Shape& shape);

/// Whether a file's shape holds a parameter of ours. A 1x1 convolution also comes as a linear layer [K, C] or as a
/// one-dimensional convolution [K, C, 1].
bool fits(std::span<const int64_t> file, const ir::Shape& shape);

/// The values of a tensor of that shape in our order of axes, and back.
std::vector<float> from_file_order(std::span<const float> values, const ir::Shape& shape);
std::vector<float> to_file_order(std::span<const float> values, const ir::Shape& shape);

/// The rows of an attention's qkv, `rows` = 3 x heads x head width of `width` values each, brought from one order to
/// the other.
std::vector<float> reorder_qkv(std::span<const float> values, int64_t rows, int64_t heads, ir::QkvOrder from,
                               ir::QkvOrder to);

}  // namespace difuse::models
