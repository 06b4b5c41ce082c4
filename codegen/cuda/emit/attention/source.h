// Pieces of source text that all kernels of attention have.
#pragma once

#include <string>
#include <vector>

#include "codegen/cuda/emit/attention/tiles.h"
#include "codegen/cuda/source/body_code.h"

namespace difuse::codegen::cuda {

std::string literal(double x);

/// The outputs of the body that are computed from one result of its attention node.
std::vector<size_t> outputs_of(const KernelSpec& spec, ir::Value result);

/// Whether runs of `lanes` consecutive channels of a head can be stored at once.
bool can_store_runs(const KernelSpec& spec, const AttentionProblem& p, const std::vector<size_t>& outputs, int lanes);

/// The channel of the projection that a head's part begins with: 0 the queries, 1 the keys, 2 the values; `part` an
/// expression.
std::string first_channel(const KernelSpec& spec, const AttentionProblem& p, const std::string& part);

/// The pointer of the node's operand i.
std::string operand(const AttentionProblem& p, size_t i);

/// Coordinates of the value and of the gradient.
std::vector<Term> row_coords(int lanes);

}  // namespace difuse::codegen::cuda
