// Arithmetic on extents that every emitter does.
#pragma once

#include <cstdint>

#include "codegen/cuda/kernel_spec.h"

namespace difuse::codegen::cuda {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
/// The least multiple of `to` that is not below a.
inline int64_t round_up(int64_t a, int64_t to) { return ceil_div(a, to) * to; }

/// Whether a tensor of the body has 2^31 elements or more, `spare` ones included that indices run past the end before
/// they are compared with it.
bool needs_wide_index(const ir::Graph& body, int64_t spare);
/// What `index_t` is.
inline const char* index_type(bool wide) { return wide ? "long long" : "int"; }

/// Elements of one copy to shared memory, 16 bytes at most, along rows of `extent` elements that lie one behind the
/// other from a multiple of `alignment` bytes on.
int copy_elements(int64_t extent, int64_t alignment, int64_t element_bytes);

/// The longest run, at most `most`, that divides the last extent and that results can be stored in: all of them, or
/// those that are not reductions.
int fitting_lanes(const KernelSpec& spec, int64_t last_extent, int most, bool reductions_too = true);

}  // namespace difuse::codegen::cuda
