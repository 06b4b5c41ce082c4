#include "passes/carry.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "ir/op.h"

namespace difuse::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Value;

constexpr int64_t kReadAlong = int64_t{1} << 16;  ///< Bytes: reading them costs less than a launch.

/// The state's next value; an invalid Value where it has none, or is it already.
Value next_of(const Graph& graph, Value state) {
  const auto update =
      std::ranges::find(graph.updates(), graph.node(state).as<ir::LeafAttrs>().name, &ir::NamedValue::name);
  if (update == graph.updates().end() || update->value == state) return {};
  return update->value;
}

/// By node: whether an output shows its result, perhaps through what moves nothing. What is carried is replaced before
/// outputs are read.
std::vector<bool> shown_nodes(const Graph& graph) {
  std::vector<bool> shown(static_cast<size_t>(graph.size()), false);
  for (const ir::NamedValue& output : graph.outputs()) {
    Value v = output.value;
    while (ir::moves_nothing(graph.node(v))) v = graph.node(v).operands[0];
    shown[static_cast<size_t>(v.node)] = true;
  }
  return shown;
}

bool is_rounded_state(const Graph& graph, const Node& node) {
  if (node.op != Op::cast && node.op != Op::round_tf32) return false;
  const Value state = node.operands[0];
  return graph.node(state).op == Op::state && graph.type(state).dtype == ir::DType::f32 &&
         ir::is_float(node.types[0].dtype) && graph.type(state).bytes() > kReadAlong && next_of(graph, state).valid();
}

}  // namespace

PassResult carry_rounded(const Graph& graph, PassContext& context) {
  struct Carried {
    std::string name;
    Value next;  // of the old graph
    ir::DType dtype;
  };
  const std::vector<bool> shown = shown_nodes(graph);
  std::vector<Carried> carried;
  std::map<Value, Value> mapped;
  Graph to = ir::rebuild(graph, [&](Graph& made, int id, const Node& node, const std::vector<Value>& operands) {
    std::vector<Value> results;
    if (is_rounded_state(graph, node) && !shown[static_cast<size_t>(id)] && context.fuel.spend()) {
      const ir::DType dtype = node.types[0].dtype;
      const std::string& state = graph.node(node.operands[0]).as<ir::LeafAttrs>().name;
      const std::string format(dtype == ir::DType::f32 ? "tf32" : ir::to_string(dtype));
      carried.push_back({fmt::format("{} in {}", state, format), next_of(graph, node.operands[0]), dtype});
      results = {made.add(Op::carry, operands, ir::CarryAttrs{carried.back().name, dtype})};
    } else {
      results = ir::copy_node(made, node, operands);
    }
    for (size_t r = 0; r < results.size(); ++r) mapped[{id, static_cast<int32_t>(r)}] = results[r];
    return results;
  });
  ir::Builder build(to);
  for (const Carried& one : carried) to.set_update(one.name, build.rounded(mapped.at(one.next), one.dtype));
  return {std::move(to), !carried.empty()};
}

}  // namespace difuse::passes
