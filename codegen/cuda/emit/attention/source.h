// Pieces of source text that all kernels of attention have.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/cuda/emit/attention/tiles.h"
#include "codegen/cuda/source/body_code.h"

namespace difuse::codegen::cuda {

/// As a hexadecimal float.
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

/// Adds the fields that the problem alone gives: extents, the head's channels, the scale of the scores.
void add_problem_fields(const KernelSpec& spec, const AttentionProblem& p,
                        std::vector<std::pair<std::string_view, std::string>>& fields);

/// Coordinates of the value and of the gradient.
std::vector<Term> row_coords(int lanes);

}  // namespace difuse::codegen::cuda
