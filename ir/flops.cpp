#include "ir/flops.h"

namespace difuse::ir {

int64_t node_flops(const Graph& graph, const Node& node) {
  auto shape = [&](size_t operand) -> const Shape& { return graph.type(node.operands[operand]).shape; };
  auto filter = [](const Shape& weights) { return weights[1] * weights[2] * weights[3]; };
  const int64_t elements = node.types[0].elements();
  switch (node.op) {
    case Op::matmul:
      return 2 * elements * shape(0)[node.as<MatmulAttrs>().transpose_a ? 0 : 1];
    case Op::conv_fprop:
      return 2 * elements * filter(shape(1));
    case Op::conv_dgrad:  // dgrad and wgrad: as many as the fprop that gave y
      return 2 * element_count(shape(0)) * filter(shape(1));
    case Op::conv_wgrad:
      return 2 * element_count(shape(1)) * filter(node.types[0].shape);
    case Op::attention:  // scores and weighted sum
      return 2 * 2 * elements * node.types[0].shape[1];
    case Op::attention_grad:  // scores again, dP, and the products for dQ, dK and dV
      return 5 * 2 * (elements / 3) * node.types[0].shape[1];
    case Op::fusion:
      return contraction_flops(*node.as<FusionAttrs>().body);
    default:
      return 0;
  }
}

int64_t contraction_flops(const Graph& graph) {
  const std::vector<bool> live = graph.live();
  int64_t sum = 0;
  for (int id = 0; id < graph.size(); ++id) {
    if (live[static_cast<size_t>(id)]) sum += node_flops(graph, graph.node(id));
  }
  return sum;
}

}  // namespace difuse::ir
