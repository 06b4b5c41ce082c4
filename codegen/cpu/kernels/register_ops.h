// The elementwise ops as loops over blocks, for every dtype that a graph may hold.
//
// While a block is worked on, f32, bf16, f16 and u8 values are floats (already rounded to their dtype), i32 and u32
// values are 32-bit integers in the same places: counters stay exact.
#pragma once

#include "codegen/cpu/block_ops.h"
#include "ir/graph.h"

namespace difuse::codegen::cpu {

/// The block loops of this machine's instruction set.
const BlockOps& block_ops();

/// The loop of an elementwise op other than cast. `operand` is the dtype of its last operand (a select's condition is
/// f32 whatever it selects); bit i of `scalars` says that operand i is one value. Throws Error where there is none.
ElementwiseKernel elementwise_kernel(ir::Op op, ir::DType operand, unsigned scalars);

/// Null where the value in the block is the same.
ElementwiseKernel cast_kernel(ir::DType from, ir::DType to);

/// out[i] = in[0][0].
void expand_kernel(const float* const* in, float* out, int64_t n);

/// Memory of `dtype` <-> a block. Only for dtypes that a block holds in another form (bf16, f16, u8).
void load_block(ir::DType dtype, const std::byte* from, float* to, int64_t n);
void store_block(ir::DType dtype, const float* from, std::byte* to, int64_t n);
/// Whether memory and block hold the same bytes: f32, i32, u32.
inline bool same_in_memory(ir::DType dtype) { return ir::size_of(dtype) == 4; }

}  // namespace difuse::codegen::cpu
