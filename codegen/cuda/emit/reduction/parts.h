// What the emitters of reduction bodies share.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/body_code.h"
#include "codegen/cuda/source/row_loop.h"
#include "ir/op.h"

namespace difuse::codegen::cuda::reduction {

/// Some results of a body, with what they need of it. The inputs keep their names, the outputs are "0", "1", ...
struct Part {
  ir::Graph body;
  std::vector<Argument> results;
  std::vector<int64_t> result_alignment;

  KernelSpec spec(const KernelSpec& whole) const {
    KernelSpec spec{body,       whole.operands, whole.alignment, results, result_alignment,
                    whole.name, whole.flops,    whole.device};
    spec.preamble = whole.preamble;
    return spec;
  }
};
Part part_of(const KernelSpec& spec, const std::vector<size_t>& outputs);

inline bool is_reduction(const ir::Node& node) { return ir::has_trait(node, ir::kReduction); }

/// The shape that the body's loop runs over.
ir::Shape iteration_shape(const ir::Graph& body);
/// Whether some tensor of the body, or some multiple of it that a kernel computes with, passes 31 bits.
bool is_wide(const ir::Graph& body);

/// All reductions of the body are reduce_sum and reduce_max over the same axes; there may be none.
void emit_reduce(const KernelSpec& spec, Emission& emission);
/// Whether all that the spec's body does is elementwise over a matrix, and sums over its rows.
bool sums_columns(const KernelSpec& spec);
void emit_column_sums(const KernelSpec& spec, Emission& emission);
/// The body has one channel_moments.
void emit_moments(const KernelSpec& spec, Emission& emission);

/// Whether the body reads a reduction's result again over the shape that it reduces.
bool reads_rows_again(const ir::Graph& body);
/// Whether all reductions of such a body are over one row, and are read again over that row.
bool accepts_rows(const ir::Graph& body);
/// Such a body, as one kernel.
void emit_rows(const KernelSpec& spec, Emission& emission);

/// A dimension of what the first kernel left, outermost first.
struct Dim {
  int64_t extent;
  bool reduced;
};
/// Second stage: reductions of tensors that have these dimensions. `maxima[i]` says what the i-th is.
void emit_finish(Emission& emission, std::vector<Dim> dims, const std::vector<bool>& maxima,
                 const std::vector<Argument>& from, const std::vector<Argument>& to);
/// Threads that share the terms where it adds an image's parts of each channel (PartSums): the order of the sum.
int64_t part_rows(int64_t terms);

}  // namespace difuse::codegen::cuda::reduction
