// What is done with the value of a convolution, a product or attention before it is stored: elementwise ops and their
// other operands.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/body_code.h"

namespace difuse::codegen::cuda {

/// Whether all that depends on `value` in the body is elementwise or a reshape, and all else can be computed where it
/// is read; so that each element of the results is computed from one element of `value`.
bool is_epilogue(const ir::Graph& body, ir::Value value);

/// The longest run of elements of the wanted results, at most `most` and 16 bytes of the narrowest, that never crosses
/// a row's end and can be stored at once.
int epilogue_lanes(const KernelSpec& spec, ir::Value value, int most);

struct EpilogueCode {
  std::string text;      ///< Statements for one run of `value`; they declare their own variables.
  std::set<int> outers;  ///< As in BodyCode.
};

/// Outputs of the body that somebody reads.
std::vector<size_t> wanted_outputs(const KernelSpec& spec);

/// Stores `outputs`, computed from a run of `value`: its elements are `expression` of lane l, its place is `coords`
/// (empty where nobody needs them) and the row-major `offset`.
EpilogueCode epilogue_code(const KernelSpec& spec, ir::Value value, const std::string& expression, int lanes,
                           const std::vector<std::string>& operands, const std::vector<Term>& coords,
                           const std::string& offset, const std::vector<size_t>& outputs);

}  // namespace difuse::codegen::cuda
