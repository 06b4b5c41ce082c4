#include "codegen/cpu/lower_cpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "codegen/cpu/kernels/assemble.h"
#include "ir/builder.h"
#include "ir/error.h"
#include "ir/op.h"

namespace difuse::codegen {
namespace {

using cpu::Place;
using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Value;

/// Ops that compute in f32 read 16-bit operands through a cast, which is exact.
Graph widened(const Graph& body) {
  return ir::rebuild(body, [&](Graph& to, int id, const Node& node, const std::vector<Value>& operands) {
    const bool computes = ir::has_trait(node, ir::kContraction) || node.op == Op::channel_moments ||
                          node.op == Op::avg_pool || (node.op == Op::scatter_add && ir::is_float(node.types[0].dtype));
    const bool narrow = std::ranges::any_of(node.operands, [&](Value v) {
      return ir::is_float(body.type(v).dtype) && body.type(v).dtype != ir::DType::f32;
    });
    if (!computes || !narrow) return ir::copy_node(to, body.node(id), operands);
    ir::Builder b(to);
    std::vector<Value> wide = operands;
    for (Value& v : wide) {
      if (ir::is_float(b.type(v).dtype)) v = b.cast(v, ir::DType::f32);
    }
    std::vector<Value> results = ir::copy_node(to, node, wide);
    for (size_t r = 0; r < results.size(); ++r) results[r] = b.cast(results[r], node.types[r].dtype);
    return results;
  });
}

/// A node as a body: inputs "0", "1", ... are `operands` in order, each once.
struct NodeBody {
  Graph graph{"body"};
  std::vector<Value> operands;
};

NodeBody body_of(const Graph& graph, const Node& node) {
  if (node.op == Op::fusion) return {widened(*node.as<ir::FusionAttrs>().body), node.operands};
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
  const Value first = made.graph.add(node.op, operands, node.attrs);
  for (int r = 0; r < static_cast<int>(node.types.size()); ++r) {
    made.graph.set_output(std::to_string(r), {first.node, r});
  }
  made.graph = widened(made.graph);
  return made;
}

std::string sizes(const ir::Shape& shape) { return fmt::format("{}", fmt::join(shape, "x")); }

/// "conv_fprop_3x3_h28w28c32k32", "matmul_64x512x128", "add_64x28x28x32".
std::string op_name(const Node& node, const Graph& graph) {
  const auto& shape = node.types[0].shape;
  auto conv = [&](const ir::Shape& weights, const ir::Shape& image) {
    return fmt::format("{}_{}x{}_h{}w{}c{}k{}", ir::to_string(node.op), weights[1], weights[2], image[1], image[2],
                       weights[3], weights[0]);
  };
  switch (node.op) {
    case Op::conv_fprop:
      return conv(graph.type(node.operands[1]).shape, graph.type(node.operands[0]).shape);
    case Op::conv_dgrad:
      return conv(graph.type(node.operands[1]).shape, shape);
    case Op::conv_wgrad:
      return conv(shape, graph.type(node.operands[0]).shape);
    case Op::matmul:
      return fmt::format("matmul_{}x{}", sizes(shape),
                         graph.type(node.operands[0]).shape[node.as<ir::MatmulAttrs>().transpose_a ? 0 : 1]);
    default:
      return fmt::format("{}_{}", ir::to_string(node.op), sizes(shape));
  }
}

std::string node_name(const Node& node, const Graph& graph) {
  if (node.op != Op::fusion) return op_name(node, graph);
  constexpr size_t kLongest = 72;
  const auto& attrs = node.as<ir::FusionAttrs>();
  const Graph& body = *attrs.body;
  std::string name(ir::to_string(attrs.hero));
  const ir::Shape* largest = &node.types[0].shape;
  for (int id = 0; id < body.size(); ++id) {
    const Node& part = body.node(id);
    if (ir::has_trait(part, ir::Trait(ir::kLeaf | ir::kBroadcast | ir::kView))) continue;
    for (const ir::Type& t : part.types) {
      if (t.elements() > ir::element_count(*largest)) largest = &t.shape;
    }
    const std::string op =
        ir::has_trait(part, ir::kContraction) ? op_name(part, body) : std::string(ir::to_string(part.op));
    if (name.size() + op.size() < kLongest) name += "_" + op;
  }
  return fmt::format("{}_{}", name, sizes(*largest));
}

class Lowering {
 public:
  Lowering(CpuPlan& plan, const Contractions& contractions) : plan_(plan), contractions_(contractions) {}

  void run() {
    const Graph& graph = plan_.graph;
    const std::vector<bool> live = graph.live();
    for (int id = 0; id < graph.size(); ++id) {
      if (live[static_cast<size_t>(id)] && !ir::has_trait(graph.node(id), ir::kLeaf)) lower(id);
    }
    for (const passes::StateCopy& copy : plan_.memory.state_copies) lower_copy(copy);
  }

 private:
  Place place(Value v) const {
    const passes::Placement& p = plan_.memory.at(v);
    return p.placed() ? Place{Place::Base::arena, p.offset} : Place{};
  }

  void lower(int id) {
    const Node& node = plan_.graph.node(id);
    const NodeBody body = body_of(plan_.graph, node);
    std::vector<cpu::BodyOperand> operands;
    int64_t bytes = 0;
    for (Value v : body.operands) {
      const Node& from = plan_.graph.node(v);
      std::optional<double> constant;
      if (from.op == Op::constant) constant = from.as<ir::ConstantAttrs>().value;
      operands.push_back({place(v), constant});
      if (!constant) bytes += plan_.graph.type(v).bytes();
    }
    std::vector<Place> results;
    for (int r = 0; r < static_cast<int>(node.types.size()); ++r) {
      results.push_back(place({id, r}));
      if (results.back().placed()) bytes += node.types[static_cast<size_t>(r)].bytes();
    }
    try {
      add(cpu::assemble(cpu::make_body(body.graph, operands, results, contractions_)), id, node_name(node, plan_.graph),
          bytes);
    } catch (const Error& e) {
      throw Error(fmt::format("lowering %{} = {}: {}", id, ir::to_string(node.op), e.what()), e.remedy(),
                  e.exit_code());
    }
  }

  void lower_copy(const passes::StateCopy& copy) {
    const ir::Type& type = plan_.graph.type(copy.from);
    Graph body("copy");
    body.set_output("0", ir::Builder(body).input("0", type));
    std::optional<double> constant;
    const Node& from = plan_.graph.node(copy.from);
    if (from.op == Op::constant) constant = from.as<ir::ConstantAttrs>().value;
    const cpu::BodyOperand operand{place(copy.from), constant};
    const Place result = place(plan_.graph.find_state(copy.state));
    add(cpu::assemble(cpu::make_body(body, std::span(&operand, 1), std::span(&result, 1), contractions_)),
        copy.from.node, fmt::format("copy_to_{}", copy.state), 2 * type.bytes());
  }

  void add(std::unique_ptr<cpu::PhaseKernel> kernel, int node, std::string name, int64_t bytes) {
    if (!kernel) return;
    kernel->name = std::move(name);
    kernel->node = node;
    kernel->bytes = bytes;
    plan_.scratch_bytes = std::max(plan_.scratch_bytes, kernel->scratch_bytes);
    plan_.workspace_bytes = std::max(plan_.workspace_bytes, kernel->workspace_bytes);
    plan_.kernels.push_back(std::move(kernel));
  }

  CpuPlan& plan_;
  const Contractions& contractions_;
};

}  // namespace

CpuPlan lower_cpu(ir::Graph graph, passes::MemoryPlan memory, const Contractions& contractions) {
  CpuPlan plan{std::move(graph), std::move(memory), {}, 0, 0};
  Lowering(plan, contractions).run();
  return plan;
}

}  // namespace difuse::codegen
