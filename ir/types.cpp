#include "ir/types.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

namespace difuse::ir {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  int64_t bytes;
};

constexpr std::array<DTypeRow, 6> kDTypes = {{{DType::f32, "f32", 4},
                                              {DType::bf16, "bf16", 2},
                                              {DType::f16, "f16", 2},
                                              {DType::i32, "i32", 4},
                                              {DType::u32, "u32", 4},
                                              {DType::u8, "u8", 1}}};

const DTypeRow& row(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }

}  // namespace

std::string_view to_string(DType dtype) { return row(dtype).name; }

std::optional<DType> parse_dtype(std::string_view text) {
  for (const DTypeRow& r : kDTypes) {
    if (r.name == text) return r.dtype;
  }
  return std::nullopt;
}

int64_t size_of(DType dtype) { return row(dtype).bytes; }

bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  for (int64_t d : shape) count *= d;
  return count;
}

std::string to_string(const Shape& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

std::string to_string(const Type& type) { return fmt::format("{}{}", to_string(type.dtype), to_string(type.shape)); }

}  // namespace difuse::ir
