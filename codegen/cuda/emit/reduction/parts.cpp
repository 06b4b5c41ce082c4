#include "codegen/cuda/emit/reduction/parts.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/source/extents.h"
#include "codegen/node_body.h"
#include "ir/op.h"

namespace difuse::codegen::cuda::reduction {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Value;

Part part_of(const KernelSpec& spec, const std::vector<size_t>& outputs) {
  Part part;
  std::vector<Value> values;
  for (const size_t r : outputs) {
    values.push_back(spec.body.outputs()[r].value);
    part.results.push_back(spec.results[r]);
    part.result_alignment.push_back(spec.result_alignment[r]);
  }
  part.body = codegen::part_of(spec.body, values);
  return part;
}

ir::Shape iteration_shape(const Graph& body) {
  for (const ir::NamedValue& output : body.outputs()) {
    const Node& node = body.node(output.value);
    return ir::has_trait(node, ir::kReduction) ? body.type(node.operands[0]).shape : node.types[0].shape;
  }
  return {};
}

bool is_wide(const Graph& body) { return needs_wide_index(body, /*spare=*/1 << 24); }

}  // namespace difuse::codegen::cuda::reduction
