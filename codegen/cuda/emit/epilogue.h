// What is done with the value of a convolution, a product or attention before it is stored: elementwise ops and their
// other operands; and reductions of the values, which a kernel whose tiles are whole strips of an image computes too.
#pragma once

#include <initializer_list>
#include <set>
#include <string>
#include <vector>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/body_code.h"

namespace difuse::codegen::cuda {

/// Whether all that depends on `value` in the body is elementwise or a reshape, and all else can be computed where it
/// is read; so that each element of the results is computed from one element of `value`. Besides, there may be
/// `reductions` of what is computed so, in its shape.
bool is_epilogue(const ir::Graph& body, ir::Value value, std::initializer_list<ir::Op> reductions = {});

/// Whether the output is a reduction of what the epilogue computes.
bool is_reduced(const ir::Graph& body, size_t output);
/// What the reductions among the outputs are taken from, each value once.
std::vector<ir::Value> reduced_values(const ir::Graph& body);

/// The longest run of elements of the wanted results, at most `most` and 16 bytes of the narrowest, that never crosses
/// a row's end and can be stored at once.
int epilogue_lanes(const KernelSpec& spec, ir::Value value, int most);

struct EpilogueCode {
  std::string text;      ///< Statements for one run of `value`; they declare their own variables.
  std::set<int> outers;  ///< As in BodyCode.
};

/// Outputs of the body that somebody reads, but for reductions.
std::vector<size_t> wanted_outputs(const KernelSpec& spec);

/// A value that is laid down besides, as floats from the pointer `to` on.
struct StagedValue {
  ir::Value value;
  std::string to;
};

/// Stores `outputs`, computed from a run of `value`: its elements are `expression` of lane l, its place is `coords`
/// (empty where nobody needs them) and the row-major `offset`. Likewise `staged`.
EpilogueCode epilogue_code(const KernelSpec& spec, ir::Value value, const std::string& expression, int lanes,
                           const std::vector<std::string>& operands, const std::vector<Term>& coords,
                           const std::string& offset, const std::vector<size_t>& outputs,
                           const std::vector<StagedValue>& staged = {});

}  // namespace difuse::codegen::cuda
