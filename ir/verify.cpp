#include "ir/verify.h"

#include <fmt/format.h>

#include <set>

#include "ir/error.h"
#include "ir/op.h"

namespace difuse::ir {

std::vector<Type> fusion_result_types(const Graph& body, std::span<const Type> operands) {
  const auto inputs = body.leaves(Op::input);
  if (inputs.size() != operands.size()) {
    throw Error(fmt::format("the body has {} inputs for {} operands", inputs.size(), operands.size()));
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    const Value v = body.find_input(std::to_string(i));
    if (!v.valid()) throw Error(fmt::format("the body has no input \"{}\"", i));
    if (body.type(v) != operands[i]) {
      throw Error(fmt::format("the body's input \"{}\" is {}, the operand is {}", i, to_string(body.type(v)),
                              to_string(operands[i])));
    }
  }
  std::vector<Type> results;
  for (const NamedValue& n : body.outputs()) {
    if (n.name != std::to_string(results.size())) {
      throw Error(fmt::format("the body's output {} is called \"{}\"", results.size(), n.name));
    }
    results.push_back(body.type(n.value));
  }
  if (results.empty()) throw Error("the body has no output");
  return results;
}

void verify(const Graph& graph) {
  std::set<std::string> input_names, state_names;
  for (int id = 0; id < graph.size(); ++id) {
    const Node& node = graph.node(id);
    const OpInfo& o = info(node.op);
    auto broken = [&](const std::string& rule) {
      return Error(fmt::format("graph {}: %{} = {}: {}", graph.name(), id, o.name, rule));
    };
    std::vector<Type> operand_types;
    for (Value v : node.operands) {
      if (v.node < 0 || v.node >= id) throw broken(fmt::format("operand %{} does not precede it", v.node));
      operand_types.push_back(graph.type(v));
    }
    if (o.rules.infer(operand_types, node.attrs) != node.types) throw broken("its types are not what inference gives");
    if (node.op == Op::input && !input_names.insert(node.as<LeafAttrs>().name).second) {
      throw broken("another input has this name");
    }
    if (node.op == Op::state && !state_names.insert(node.as<LeafAttrs>().name).second) {
      throw broken("another state has this name");
    }
    if (node.op == Op::carry) {
      if (graph.node(node.operands[0]).op != Op::state) throw broken("its operand is no state");
      if (!state_names.insert(node.as<CarryAttrs>().name).second) throw broken("another state has this name");
    }
    if (node.op == Op::fusion) {
      const Graph& body = *node.as<FusionAttrs>().body;
      verify(body);
      for (int b = 0; b < body.size(); ++b) {
        const Op inner = body.node(b).op;
        if (inner == Op::fusion || inner == Op::state || inner == Op::carry) {
          throw broken(fmt::format("its body holds a {}", to_string(inner)));
        }
      }
    }
  }
  for (const NamedValue& n : graph.updates()) {
    if (graph.type(graph.find_replaced(n.name)) != graph.type(n.value)) {
      throw Error(fmt::format("graph {}: the update of \"{}\" changes its type", graph.name(), n.name));
    }
  }
}

}  // namespace difuse::ir
