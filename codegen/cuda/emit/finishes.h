// What emit/preamble.cpp asks of the emitters of what it puts before a loop.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "codegen/cuda/kernel_spec.h"
#include "ir/graph.h"

namespace difuse::codegen::cuda {

/// Statements with which `$threads` threads, of which this is number `thread`, make one image's results of a
/// group_finish, the image's number being the variable `this_image`: mean and rstd of channel c into results[0][c] and
/// results[1][c]. `pointers` are those of the node's operands.
std::string group_finish_statements(const ir::Graph& body, int node, const std::vector<std::string>& pointers,
                                    const std::array<std::string, 2>& results,
                                    const std::string& thread = "static_cast<int>(threadIdx.x)");

/// Likewise, of a body that reads its rows again (reduction::accepts_rows), the rows of one image, of which there are
/// `groups`. Operands are the pointers p0, p1, ..., results y0, y1, ...
std::string row_statements(const KernelSpec& spec, int64_t groups,
                           const std::string& thread = "static_cast<int>(threadIdx.x)");

}  // namespace difuse::codegen::cuda
