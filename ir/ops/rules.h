// Small helpers that the op families share.
#pragma once

#include <fmt/format.h>

#include "ir/builder.h"
#include "ir/error.h"
#include "ir/op.h"

namespace difuse::ir {

/// Throws the Error of a type rule: `require(a == b, "{} rows for {}", ...)`.
template <class... Args>
void require(bool holds, fmt::format_string<Args...> text, Args&&... args) {
  if (!holds) throw Error(fmt::format(text, std::forward<Args>(args)...));
}

inline void require_rank(const Type& t, int rank, std::string_view what) {
  require(t.rank() == rank, "{} must have {} dimensions, is {}", what, rank, to_string(t));
}

inline void require_f32(std::span<const Type> operands) {
  for (const Type& t : operands) require(t.dtype == DType::f32, "computes in f32, an operand is {}", to_string(t));
}

/// The contractions read f32 or a 16-bit float (all operands alike) and give f32.
inline void require_contraction(std::span<const Type> operands) {
  for (const Type& t : operands) {
    require(is_float(t.dtype) && t.dtype == operands[0].dtype, "operands must be of one floating type, not {} and {}",
            to_string(operands[0]), to_string(t));
  }
}

/// Outer extent, the axis itself and the inner extent of a row-major shape: element (o, a, i) is at (o * axis + a) *
/// inner + i.
struct AxisSplit {
  int64_t outer = 1, axis = 1, inner = 1;
  AxisSplit(const Shape& shape, int64_t at) {
    for (size_t i = 0; i < shape.size(); ++i) {
      (static_cast<int64_t>(i) < at ? outer : static_cast<int64_t>(i) == at ? axis : inner) *= shape[i];
    }
  }
};

/// Runs `body(i)` for i in [0, count), in parallel. The reference's only threads.
template <class Body>
void parallel_for(int64_t count, const Body& body) {
#pragma omp parallel for schedule(static)
  for (int64_t i = 0; i < count; ++i) body(i);
}

}  // namespace difuse::ir
