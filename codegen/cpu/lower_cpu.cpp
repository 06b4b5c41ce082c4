#include "codegen/cpu/lower_cpu.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/cpu/kernels/assemble.h"
#include "codegen/node_body.h"
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

NodeBody widened_body(const Graph& graph, int id) {
  NodeBody body = node_body(graph, id);
  body.graph = widened(body.graph);
  return body;
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
    const NodeBody body = widened_body(plan_.graph, id);
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
      add(cpu::assemble(cpu::make_body(body.graph, operands, results, contractions_)), id, node_name(plan_.graph, id),
          bytes, id < plan_.memory.once_end ? plan_.once : plan_.kernels);
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
    const Place result = place(plan_.graph.find_replaced(copy.state));
    add(cpu::assemble(cpu::make_body(body, std::span(&operand, 1), std::span(&result, 1), contractions_)),
        copy.from.node, fmt::format("copy_to_{}", copy.state), 2 * type.bytes(), plan_.kernels);
  }

  void add(std::unique_ptr<cpu::PhaseKernel> kernel, int node, std::string name, int64_t bytes,
           std::vector<std::unique_ptr<CpuKernel>>& to) {
    if (!kernel) return;
    kernel->name = std::move(name);
    kernel->node = node;
    kernel->bytes = bytes;
    plan_.scratch_bytes = std::max(plan_.scratch_bytes, kernel->scratch_bytes);
    plan_.workspace_bytes = std::max(plan_.workspace_bytes, kernel->workspace_bytes);
    to.push_back(std::move(kernel));
  }

  CpuPlan& plan_;
  const Contractions& contractions_;
};

}  // namespace

CpuPlan lower_cpu(ir::Graph graph, passes::MemoryPlan memory, const Contractions& contractions) {
  CpuPlan plan{std::move(graph), std::move(memory), {}, {}, 0, 0};
  Lowering(plan, contractions).run();
  return plan;
}

}  // namespace difuse::codegen
