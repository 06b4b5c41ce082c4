#include "codegen/node_body.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "ir/builder.h"
#include "ir/op.h"

namespace difuse::codegen {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Value;

constexpr size_t kLongestName = 72;

/// An image's extents; the outermost is the batch or depends on it. Of smaller tensors none: a batch of one may have
/// fewer dimensions and still be the same kernel.
std::string sizes(const ir::Shape& shape) {
  if (shape.size() < 3) return "";
  return fmt::format("_{}", fmt::join(shape.begin() + 1, shape.end(), "x"));
}

std::string op_name(const Graph& graph, const Node& node) {
  const ir::Shape& shape = node.types[0].shape;
  const auto operand = [&](size_t i) -> const ir::Shape& { return graph.type(node.operands[i]).shape; };
  const auto conv = [&](const ir::Shape& weights, const ir::Shape& image) {
    return fmt::format("{}_{}x{}_h{}w{}c{}k{}", ir::to_string(node.op), weights[1], weights[2], image[1], image[2],
                       weights[3], weights[0]);
  };
  switch (node.op) {
    case Op::conv_fprop:
      return conv(operand(1), operand(0));
    case Op::conv_dgrad:
      return conv(operand(1), shape);
    case Op::conv_wgrad:
      return conv(shape, operand(0));
    case Op::matmul: {
      // What is reduced over the rows of a batch is a weight's gradient. Products of all widths are one kernel.
      return node.as<ir::MatmulAttrs>().transpose_a ? "matmul_rows" : "matmul";
    }
    default:
      return fmt::format("{}{}", ir::to_string(node.op), sizes(shape));
  }
}

}  // namespace

NodeBody node_body(const Graph& graph, int id) {
  const Node& node = graph.node(id);
  if (node.op == Op::fusion) return {*node.as<ir::FusionAttrs>().body, node.operands};
  NodeBody made;
  ir::Builder b(made.graph);
  std::map<Value, Value> inputs;
  std::vector<Value> operands;
  for (Value v : node.operands) {
    const auto [it, fresh] = inputs.try_emplace(v);
    if (fresh) {
      it->second = b.input(std::to_string(made.operands.size()), graph.type(v));
      made.operands.push_back(v);
    }
    operands.push_back(it->second);
  }
  const Value first = node.op == Op::carry ? b.rounded(operands[0], node.types[0].dtype)
                                           : made.graph.add(node.op, operands, node.attrs);
  for (int r = 0; r < static_cast<int>(node.types.size()); ++r) {
    made.graph.set_output(std::to_string(r), {first.node, r});
  }
  return made;
}

Graph part_of(const Graph& graph, const std::vector<Value>& values) {
  Graph part("part");
  std::vector<bool> needed(static_cast<size_t>(graph.size()), false);
  for (const Value v : values) needed[static_cast<size_t>(v.node)] = true;
  for (int id = graph.size() - 1; id >= 0; --id) {
    if (!needed[static_cast<size_t>(id)]) continue;
    for (const Value v : graph.node(id).operands) needed[static_cast<size_t>(v.node)] = true;
  }
  std::map<Value, Value> copies;
  for (int id = 0; id < graph.size(); ++id) {
    if (!needed[static_cast<size_t>(id)]) continue;
    std::vector<Value> operands;
    for (const Value v : graph.node(id).operands) operands.push_back(copies.at(v));
    const std::vector<Value> made = ir::copy_node(part, graph.node(id), operands);
    for (size_t r = 0; r < made.size(); ++r) copies[{id, static_cast<int32_t>(r)}] = made[r];
  }
  for (size_t i = 0; i < values.size(); ++i) part.set_output(std::to_string(i), copies.at(values[i]));
  return part;
}

std::string node_name(const Graph& graph, int id) {
  const Node& node = graph.node(id);
  if (node.op != Op::fusion) return op_name(graph, node);
  const auto& attrs = node.as<ir::FusionAttrs>();
  const Graph& body = *attrs.body;
  std::string name(ir::to_string(attrs.hero));
  const ir::Shape* largest = &node.types[0].shape;
  for (int part = 0; part < body.size(); ++part) {
    const Node& inner = body.node(part);
    if (ir::has_trait(inner, ir::Trait(ir::kLeaf | ir::kBroadcast | ir::kView))) continue;
    for (const ir::Type& t : inner.types) {
      if (t.elements() > ir::element_count(*largest)) largest = &t.shape;
    }
    const std::string op =
        ir::has_trait(inner, ir::kContraction) ? op_name(body, inner) : std::string(ir::to_string(inner.op));
    if (name.size() + op.size() < kLongestName) name += "_" + op;
  }
  return name + sizes(*largest);
}

int input_number(const ir::Node& input) { return std::stoi(input.as<ir::LeafAttrs>().name); }

}  // namespace difuse::codegen
