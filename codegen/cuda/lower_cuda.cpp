#include "codegen/cuda/lower_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/plan_writer.h"
#include "codegen/node_body.h"
#include "ir/builder.h"
#include "ir/error.h"
#include "ir/flops.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {
namespace {

using ir::Graph;
using ir::Node;
using ir::Op;
using ir::Value;

int64_t alignment_of(int64_t offset) {
  return offset == 0 ? passes::kArenaAlignment : std::min(passes::kArenaAlignment, offset & -offset);
}

/// Constants that the outer graph holds become part of the body: they are then literals in the source.
Graph with_constants(const Graph& body, const Graph& graph, const std::vector<Value>& operands) {
  return ir::rebuild(body, [&](Graph& to, int, const Node& node, const std::vector<Value>& in) {
    if (node.op == Op::input) {
      const Node& from = graph.node(operands[std::stoul(node.as<ir::LeafAttrs>().name)]);
      if (from.op == Op::constant) return std::vector<Value>{to.add(Op::constant, {}, from.attrs)};
    }
    return ir::copy_node(to, node, in);
  });
}

/// Whether every element of a value is a float rounded to tf32; `outer` is what the inputs of the graph are where it is
/// a fusion's body.
bool is_tf32(const Graph& graph, Value v, const std::function<bool(int input)>& outer = nullptr) {
  const Node& node = graph.node(v);
  if (node.op == Op::round_tf32 || (node.op == Op::carry && node.types[0].dtype == ir::DType::f32)) return true;
  if (node.op == Op::input && outer != nullptr) return outer(input_number(node));
  if (node.op == Op::fusion) {
    const Graph& body = *node.as<ir::FusionAttrs>().body;
    return is_tf32(body, body.outputs()[static_cast<size_t>(v.result)].value,
                   [&](int input) { return is_tf32(graph, node.operands[static_cast<size_t>(input)], outer); });
  }
  // What averages or adds is not among them.
  constexpr std::array kMoves = {Op::reshape, Op::view, Op::transpose, Op::slice,     Op::reverse,
                                 Op::concat,  Op::pad,  Op::repack,    Op::broadcast, Op::upsample_nearest};
  if (std::ranges::find(kMoves, node.op) == kMoves.end()) return false;
  return std::ranges::all_of(node.operands, [&](Value operand) { return is_tf32(graph, operand, outer); });
}

using Visit = std::function<void(const KernelSpec&, int)>;

class Walk {
 public:
  Walk(const Graph& graph, const passes::MemoryPlan& memory, const ir::DeviceSpec& device, const Visit& visit)
      : graph_(graph), memory_(memory), device_(device), visit_(visit) {}

  void run() const {
    const std::vector<bool> live = graph_.live();
    for (int id = 0; id < graph_.size(); ++id) {
      if (live[static_cast<size_t>(id)] && !ir::has_trait(graph_.node(id), ir::kLeaf)) lower(id);
    }
    for (const passes::StateCopy& copy : memory_.state_copies) lower_copy(copy);
  }

 private:
  Argument place(Value v) const {
    const passes::Placement& p = memory_.at(v);
    return p.placed() ? Argument{Argument::Kind::arena, p.offset} : Argument::number(0);
  }

  /// Nodes that run at once with this one, itself among them.
  int members(int id) const {
    const auto range = std::ranges::find_if(memory_.together,
                                            [&](const passes::NodeRange& r) { return r.first <= id && id <= r.last; });
    return range == memory_.together.end() ? 1 : range->last - range->first + 1;
  }

  void lower(int id) const {
    if (passes::is_alias(graph_, memory_, id)) return;
    const Node& node = graph_.node(id);
    const NodeBody made = node_body(graph_, id);
    const bool plain = ir::node_flops(graph_, node) == 0 && node.op != Op::group_finish && node.op != Op::pack;
    const Graph body = plain ? with_constants(made.graph, graph_, made.operands) : made.graph;
    KernelSpec spec{body, {}, {}, {}, {}, node_name(graph_, id), ir::node_flops(graph_, node), device_};
    for (const Value v : made.operands) {
      spec.operands.push_back(place(v));
      spec.alignment.push_back(alignment_of(spec.operands.back().value));
      spec.is_tf32.push_back(is_tf32(graph_, v));
    }
    for (int r = 0; r < static_cast<int>(node.types.size()); ++r) {
      spec.results.push_back(place({id, r}));
      spec.result_alignment.push_back(alignment_of(spec.results.back().value));
    }
    spec.members = members(id);
    visit(spec, id);
  }

  void lower_copy(const passes::StateCopy& copy) const {
    Graph identity("copy");
    identity.set_output("0", ir::Builder(identity).input("0", graph_.type(copy.from)));
    const Graph body = with_constants(identity, graph_, {copy.from});
    const Argument from = place(copy.from), to = place(graph_.find_replaced(copy.state));
    visit({body, {from}, {alignment_of(from.value)}, {to}, {alignment_of(to.value)}, "copy", 0, device_},
          copy.from.node);
  }

  void visit(const KernelSpec& spec, int id) const {
    bool any = false;
    for (size_t r = 0; r < spec.results.size(); ++r) any = any || spec.wanted(r);
    if (!any) return;
    try {
      visit_(spec, id);
    } catch (const Error& e) {
      throw Error(fmt::format("lowering %{} = {}: {}", id, ir::to_string(graph_.node(id).op), e.what()), e.remedy(),
                  e.exit_code());
    }
  }

  const Graph& graph_;
  const passes::MemoryPlan& memory_;
  const ir::DeviceSpec& device_;
  const Visit& visit_;
};

}  // namespace

namespace {

template <bool (*accepts_body)(const Graph&)>
bool accepts(const KernelSpec& spec) {
  return accepts_body(spec.body);
}

}  // namespace

std::span<const Emitter> emitters() {
  static constexpr std::array<Emitter, 13> kEmitters = {{
      {"conv_wgmma", accepts_conv_wgmma, emit_conv_wgmma, conv_wgmma_choices},
      {"wgrad_wgmma", accepts_wgrad_wgmma, emit_wgrad_wgmma, wgrad_wgmma_choices, false, true},
      {"contraction", accepts<accepts_contraction>, emit_contraction, contraction_choices},
      {"attention_wgmma", accepts_attention_wgmma, emit_attention_wgmma, attention_wgmma_choices},
      {"attention_stream", accepts_attention_stream, emit_attention_stream},
      {"attention", accepts<accepts_attention>, emit_attention, attention_choices},
      {"group_finish", accepts<accepts_group_finish>, emit_group_finish},
      {"pack", accepts<accepts_pack>, emit_pack, nullptr, true},
      {"repack", accepts<accepts_repack>, emit_repack},
      {"reduction", accepts<accepts_reduction>, emit_reduction},
      {"elementwise", accepts<accepts_elementwise>, emit_elementwise},
      {"preamble", accepts_with_preamble, emit_with_preamble},
      {"apart", accepts_apart, emit_apart, apart_choices},
  }};
  return kEmitters;
}

const Emitter& find_emitter(const KernelSpec& spec) {
  const auto all = emitters();
  const auto found = std::ranges::find_if(all, [&](const Emitter& e) { return e.accepts(spec); });
  if (found == all.end()) throw Error("there is no CUDA kernel for such a body");
  return *found;
}

void for_each_spec(const Graph& graph, const passes::MemoryPlan& memory, const ir::DeviceSpec& device,
                   const Visit& visit) {
  Walk(graph, memory, device, visit).run();
}

CudaPlan lower_cuda(Graph graph, passes::MemoryPlan memory, const ir::DeviceSpec& device,
                    const TuningTable* decisions) {
  CudaPlan plan{std::move(graph), std::move(memory), {}, {}, 0};
  PlanWriter writer(plan, device, decisions);
  // What waits should not drive out of L2 what follows, but for large parts a launch less is worth as much as L2.
  // Beside the arena it is little in any case.
  constexpr int64_t kShare = 24;
  LaunchOrder order(plan, std::clamp(plan.memory.arena_bytes / kShare, device.l2_bytes / 2, device.l2_bytes));
  for_each_spec(plan.graph, plan.memory, device, [&](const KernelSpec& spec, int node) {
    const TakenSums taken = order.begin(node, spec);
    writer.emit(taken.spec(), node, order.held());
    order.end(node, spec, find_emitter(spec).independent, writer.workspace_ranges());
  });
  order.finish();
  return plan;
}

}  // namespace difuse::codegen::cuda
