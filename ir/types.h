// ir/ says what a graph is: types, ops, nodes, the text form, the verifier and the reference that gives every op its
// meaning. What must not live here: CUDA, files, threads (but for the reference's one OpenMP loop) and anything that
// rewrites a graph (passes/).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace difuse::ir {

enum class DType : uint8_t { f32, bf16, f16, i32, u32, u8 };

std::string_view to_string(DType dtype);
std::optional<DType> parse_dtype(std::string_view text);
/// Bytes of one element.
int64_t size_of(DType dtype);
bool is_float(DType dtype);

/// Dimensions, outermost first. Images are [N, H, W, C], convolution weights [Cout, R, S, Cin]; a scalar is [].
using Shape = std::vector<int64_t>;

/// Product of the dimensions; 1 for a scalar.
int64_t element_count(const Shape& shape);
std::string to_string(const Shape& shape);

struct Type {
  DType dtype = DType::f32;
  Shape shape;

  int64_t elements() const { return element_count(shape); }
  int64_t bytes() const { return elements() * size_of(dtype); }
  int rank() const { return static_cast<int>(shape.size()); }
  bool operator==(const Type&) const = default;
};

/// "f32[64, 28, 28, 1]"
std::string to_string(const Type& type);

}  // namespace difuse::ir
