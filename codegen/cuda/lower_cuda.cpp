#include "codegen/cuda/lower_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/jit/sha256.h"
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

constexpr int64_t kAlignment = 256;

int64_t alignment_of(int64_t offset) { return offset == 0 ? kAlignment : std::min(kAlignment, offset & -offset); }

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

/// Whether every element of a value is a float rounded to tf32.
bool is_tf32(const Graph& graph, Value v) {
  const Node& node = graph.node(v);
  if (node.op == Op::round_tf32) return true;
  if (node.op == Op::fusion) {
    const Graph& body = *node.as<ir::FusionAttrs>().body;
    return is_tf32(body, body.outputs()[static_cast<size_t>(v.result)].value);
  }
  // What averages or adds is not among them.
  constexpr std::array kMoves = {Op::reshape, Op::view, Op::transpose, Op::slice,     Op::reverse,
                                 Op::concat,  Op::pad,  Op::repack,    Op::broadcast, Op::upsample_nearest};
  if (std::ranges::find(kMoves, node.op) == kMoves.end()) return false;
  return std::ranges::all_of(node.operands, [&](Value operand) { return is_tf32(graph, operand); });
}

std::string identifier(std::string name) {
  constexpr size_t kLongest = 96;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name.substr(0, kLongest);
}

class Lowering : public Emission {
 public:
  Lowering(CudaPlan& plan, const ir::DeviceSpec& device)
      : plan_(plan), device_(device), architecture_(ir::architecture_name(device)) {}

  void run() {
    const Graph& graph = plan_.graph;
    const std::vector<bool> live = graph.live();
    for (int id = 0; id < graph.size(); ++id) {
      if (live[static_cast<size_t>(id)] && !ir::has_trait(graph.node(id), ir::kLeaf)) lower(id);
    }
    for (const passes::StateCopy& copy : plan_.memory.state_copies) lower_copy(copy);
  }

  Argument workspace(int64_t bytes) override {
    const Argument at{Argument::Kind::workspace, workspace_};
    workspace_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    plan_.workspace_bytes = std::max(plan_.workspace_bytes, workspace_);
    return at;
  }

  void launch(KernelDraft draft) override {
    Sha256 hash;
    hash.add_field(draft.source);
    for (const std::string& option : draft.options) hash.add_field(option);
    const std::string digest = hash.hex();
    const auto [it, fresh] = sources_.try_emplace(digest, static_cast<int>(plan_.sources.size()));
    if (fresh) {
      const std::string name = fmt::format("{}_{}", identifier(draft.name), digest.substr(0, 8));
      plan_.sources.push_back({name, filled(draft.source, {{"kernel", name}}), architecture_, draft.options});
    }
    plan_.calls.push_back({it->second, node_, draft.grid, draft.threads, draft.shared_bytes, std::move(draft.arguments),
                           draft.bytes, draft.flops});
  }

 private:
  Argument place(Value v) const {
    const passes::Placement& p = plan_.memory.at(v);
    return p.placed() ? Argument{Argument::Kind::arena, p.offset} : Argument::number(0);
  }

  /// Whether the node's result needs no kernel because it lies where its operand lies.
  bool is_alias(int id) const {
    const Node& node = plan_.graph.node(id);
    if (node.op != Op::reshape && node.op != Op::view) return false;
    int64_t from = plan_.memory.at(node.operands[0]).offset;
    if (node.op == Op::view) from += node.as<ir::ViewAttrs>().offset * ir::size_of(node.types[0].dtype);
    return plan_.memory.at({id, 0}).offset == from;
  }

  void lower(int id) {
    if (is_alias(id)) return;
    const Graph& graph = plan_.graph;
    const Node& node = graph.node(id);
    const NodeBody made = node_body(graph, id);
    const bool plain = ir::node_flops(graph, node) == 0 && node.op != Op::group_finish && node.op != Op::pack;
    const Graph body = plain ? with_constants(made.graph, graph, made.operands) : made.graph;
    KernelSpec spec{body, {}, {}, {}, {}, node_name(graph, id), ir::node_flops(graph, node), device_};
    for (const Value v : made.operands) {
      spec.operands.push_back(place(v));
      spec.alignment.push_back(alignment_of(spec.operands.back().value));
      spec.is_tf32.push_back(is_tf32(graph, v));
    }
    for (int r = 0; r < static_cast<int>(node.types.size()); ++r) {
      spec.results.push_back(place({id, r}));
      spec.result_alignment.push_back(alignment_of(spec.results.back().value));
    }
    emit(spec, id);
  }

  void lower_copy(const passes::StateCopy& copy) {
    const Graph& graph = plan_.graph;
    Graph identity("copy");
    identity.set_output("0", ir::Builder(identity).input("0", graph.type(copy.from)));
    const Graph body = with_constants(identity, graph, {copy.from});
    const Argument from = place(copy.from), to = place(graph.find_state(copy.state));
    emit({body, {from}, {alignment_of(from.value)}, {to}, {alignment_of(to.value)}, "copy", 0, device_},
         copy.from.node);
  }

  void emit(const KernelSpec& spec, int id) {
    node_ = id;
    workspace_ = 0;
    bool any = false;
    for (size_t r = 0; r < spec.results.size(); ++r) any = any || spec.wanted(r);
    if (!any) return;
    try {
      const auto all = emitters();
      const auto found = std::ranges::find_if(all, [&](const Emitter& e) { return e.accepts(spec.body); });
      if (found == all.end()) throw Error("there is no CUDA kernel for such a body");
      found->emit(spec, *this);
    } catch (const Error& e) {
      throw Error(fmt::format("lowering %{} = {}: {}", id, ir::to_string(plan_.graph.node(id).op), e.what()),
                  e.remedy(), e.exit_code());
    }
  }

  CudaPlan& plan_;
  const ir::DeviceSpec& device_;
  std::string architecture_;
  std::map<std::string, int> sources_;  // by digest
  int node_ = -1;
  int64_t workspace_ = 0;
};

}  // namespace

std::span<const Emitter> emitters() {
  static constexpr std::array<Emitter, 6> kEmitters = {{
      {"contraction", accepts_contraction, emit_contraction},
      {"attention", accepts_attention, emit_attention},
      {"group_finish", accepts_group_finish, emit_group_finish},
      {"pack", accepts_pack, emit_pack},
      {"reduction", accepts_reduction, emit_reduction},
      {"elementwise", accepts_elementwise, emit_elementwise},
  }};
  return kEmitters;
}

CudaPlan lower_cuda(Graph graph, passes::MemoryPlan memory, const ir::DeviceSpec& device) {
  CudaPlan plan{std::move(graph), std::move(memory), {}, {}, 0};
  Lowering(plan, device).run();
  return plan;
}

}  // namespace difuse::codegen::cuda
