#include "models/weights/tensor_layout.h"

#include <algorithm>

namespace difuse::models {
namespace {

/// [A, B, D] -> [A, D, B], one value each.
std::vector<float> swap_last(std::span<const float> values, int64_t a, int64_t b, int64_t d) {
  std::vector<float> result(values.size());
  for (int64_t i = 0; i < a; ++i) {
    for (int64_t j = 0; j < b; ++j) {
      for (int64_t k = 0; k < d; ++k) {
        result[static_cast<size_t>((i * d + k) * b + j)] = values[static_cast<size_t>((i * b + j) * d + k)];
      }
    }
  }
  return result;
}

/// Where row `row` of q, k or v of a head lies.
int64_t qkv_row(ir::QkvOrder order, int64_t heads, int64_t width, int64_t part, int64_t head, int64_t row) {
  return order == ir::QkvOrder::heads_first ? (head * 3 + part) * width + row : (part * heads + head) * width + row;
}

}  // namespace

std::vector<int64_t> file_shape(const ir::Shape& shape) {
  if (shape.size() != 4) return shape;
  return {shape[0], shape[3], shape[1], shape[2]};
}

bool fits(std::span<const int64_t> file, const ir::Shape& shape) {
  std::vector<int64_t> wanted = file_shape(shape);
  if (std::ranges::equal(file, wanted)) return true;
  if (wanted.size() != 4 || wanted[2] != 1 || wanted[3] != 1) return false;
  wanted.pop_back();
  if (std::ranges::equal(file, wanted)) return true;
  wanted.pop_back();
  return std::ranges::equal(file, wanted);
}

std::vector<float> from_file_order(std::span<const float> values, const ir::Shape& shape) {
  if (shape.size() != 4) return {values.begin(), values.end()};
  return swap_last(values, shape[0], shape[3], shape[1] * shape[2]);
}

std::vector<float> to_file_order(std::span<const float> values, const ir::Shape& shape) {
  if (shape.size() != 4) return {values.begin(), values.end()};
  return swap_last(values, shape[0], shape[1] * shape[2], shape[3]);
}

std::vector<float> reorder_qkv(std::span<const float> values, int64_t rows, int64_t heads, ir::QkvOrder from,
                               ir::QkvOrder to) {
  const int64_t per_row = static_cast<int64_t>(values.size()) / rows, width = rows / 3 / heads;
  std::vector<float> result(values.size());
  for (int64_t part = 0; part < 3; ++part) {
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t row = 0; row < width; ++row) {
        const auto source = values.begin() + qkv_row(from, heads, width, part, head, row) * per_row;
        std::copy_n(source, per_row, result.begin() + qkv_row(to, heads, width, part, head, row) * per_row);
      }
    }
  }
  return result;
}

}  // namespace difuse::models
