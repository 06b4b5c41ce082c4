#include "codegen/cuda/join/nodes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "codegen/cuda/join/table.h"
#include "codegen/cuda/lower_cuda.h"
#include "codegen/cuda/plan_writer.h"
#include "ir/op.h"

namespace difuse::codegen::cuda {
namespace {

using ir::Graph;
using ir::Op;
using ir::Value;

constexpr int kMostSharers = 8;  // More of them leave hardly fewer partial sums.

/// What nodes are like, by node.
struct Kinds {
  std::vector<int> of;  ///< Equal nodes have one number; -1: a node that is like no other, or must not move.
  std::vector<std::vector<int>> nodes;  ///< By kind, increasing.
  std::vector<int64_t> workspace = {};  ///< Bytes, by node: all that run at once have their own.
  std::vector<int64_t> alone = {};      ///< Of what shares the processors: as much, where it has them all.
  std::vector<bool> shares = {};        ///< By node: Emitter::shares_processors.

  bool any_shares() const { return std::ranges::count(shares, true) > 0; }
};

/// The node whose kernel writes the value.
int made_by(const Graph& graph, Value v) {
  while (ir::moves_nothing(graph.node(v.node))) v = graph.node(v).operands[0];
  return v.node;
}

/// Bytes of the arena that nothing lies in while each node runs.
std::vector<int64_t> bytes_free(const Graph& graph, const passes::MemoryPlan& memory) {
  const std::vector<bool> live = graph.live();
  std::map<Value, int> last;  // who reads it
  const auto base = [&](Value v) {
    while (ir::moves_nothing(graph.node(v.node))) v = graph.node(v).operands[0];
    return v;
  };
  for (int id = 0; id < graph.size(); ++id) {
    if (!live[static_cast<size_t>(id)] || ir::moves_nothing(graph.node(id))) continue;
    for (const Value v : graph.node(id).operands) last[base(v)] = id;
  }
  for (const ir::NamedValue& output : graph.outputs()) last[base(output.value)] = graph.size() - 1;
  std::vector<int64_t> change(static_cast<size_t>(graph.size()) + 1, 0);
  change[0] = memory.arena_bytes;
  const auto add = [&](int first, int end, int64_t bytes) {
    change[static_cast<size_t>(first)] -= bytes;
    change[static_cast<size_t>(end) + 1] += bytes;
  };
  for (const auto& [value, reader] : last) {
    const passes::Placement& p = memory.at(value);
    // What is packed is made in its place: the vector is counted as its parts are.
    if (graph.node(value).op == Op::pack || !p.placed()) continue;
    const bool stays = ir::has_trait(graph.node(value), ir::kLeaf) || value.node < memory.once_end;
    add(stays ? 0 : value.node, stays ? graph.size() - 1 : reader, p.bytes);
  }
  std::partial_sum(change.begin(), change.end() - 1, change.begin());
  change.pop_back();
  return change;
}

/// Nodes are equal when their launches are, one by one. Second stages join however many threads share a sum; but nodes
/// of many more extents that wait for one another keep more alive than they gain.
Kinds find_kinds(const Graph& graph, const passes::MemoryPlan& memory, const ir::DeviceSpec& device,
                 const TuningTable* decisions) {
  using Launch = std::tuple<int, int64_t, int, int64_t, int64_t>;  // kernel, y, threads, shared memory, sharers
  CudaPlan trial;
  PlanWriter writer(trial, device, decisions);
  Joiner joiner(trial);
  std::map<std::vector<Launch>, std::vector<int>> by_launches;
  std::vector<int64_t> workspace(static_cast<size_t>(graph.size()), 0);
  std::vector<int64_t> alone = workspace;
  std::vector<bool> shares(static_cast<size_t>(graph.size()), false);
  int latest = -1;
  for_each_spec(graph, memory, device, [&](const KernelSpec& spec, int node) {
    if (node <= latest) return;  // Copies a state.
    latest = node;
    // What is not run in every step stays before what is.
    if (ir::moves_nothing(graph.node(node)) || node < memory.once_end) return;
    const auto emit = [&](int members) {
      KernelSpec member = spec;
      member.members = members;
      writer.emit(member, node);
      int64_t bytes = 0;
      for (const WorkspaceRange& range : writer.workspace_ranges()) bytes += range.end - range.begin;
      return bytes;
    };
    if (find_emitter(spec).shares_processors) {
      shares[static_cast<size_t>(node)] = true;
      alone[static_cast<size_t>(node)] = emit(1);
    }
    const size_t begin = trial.calls.size();
    workspace[static_cast<size_t>(node)] = emit(shares[static_cast<size_t>(node)] ? kMostSharers : 1);
    std::vector<Launch> launches;
    for (size_t i = begin; i < trial.calls.size(); ++i) {
      const KernelCall& call = trial.calls[i];
      if (!joiner.can_join(call)) return;
      launches.emplace_back(call.source, call.grid.y, call.threads, call.shared_bytes, call.sharers);
    }
    by_launches[launches].push_back(node);
  });
  Kinds kinds{std::vector<int>(static_cast<size_t>(graph.size()), -1),
              {},
              std::move(workspace),
              std::move(alone),
              std::move(shares)};
  for (const auto& [launches, nodes] : by_launches) {
    if (nodes.size() < 2) continue;
    for (const int id : nodes) kinds.of[static_cast<size_t>(id)] = static_cast<int>(kinds.nodes.size());
    kinds.nodes.push_back(nodes);
  }
  // The next value of a state is made in the state's place, which no node does that runs with others.
  for (const ir::NamedValue& update : graph.updates()) {
    const int node = made_by(graph, update.value);
    int& kind = kinds.of[static_cast<size_t>(node)];
    if (kind >= 0) std::erase(kinds.nodes[static_cast<size_t>(kind)], node);
    kind = -1;
  }
  return kinds;
}

class Mover {
 public:
  /// `spare`: bytes by node that may be kept alive besides while it runs, by nodes that share the processors.
  Mover(const Graph& graph, const Kinds& kinds, int64_t most_bytes, std::vector<int64_t> spare)
      : graph_(graph),
        kinds_(kinds),
        most_bytes_(most_bytes),
        spare_(std::move(spare)),
        live_(graph.live()),
        state_(static_cast<size_t>(graph.size()), State::waits),
        gathers_(kinds.nodes.size(), false) {
    for (const ir::NamedValue& update : graph.updates()) find_earlier_readers(update);
  }

  /// The graph in its new order.
  Graph run(std::vector<passes::NodeRange>& together) {
    for (int id = 0; id < graph_.size(); ++id) {
      const Op op = graph_.node(id).op;
      if (op == Op::input || op == Op::state || op == Op::carry) place(id);
    }
    for (int id = 0; id < graph_.size(); ++id) meet(id);
    for (int id = 0; id < graph_.size(); ++id) {
      if (live_[static_cast<size_t>(id)]) require(id);
    }
    together = std::move(together_);
    return ir::reordered(graph_, order_);
  }

 private:
  /// Who reads a state before its next value is made in its place.
  void find_earlier_readers(const ir::NamedValue& update) {
    const int state = graph_.find_replaced(update.name).node, end = made_by(graph_, update.value);
    for (int id = 0; id < end; ++id) {
      const auto reads = [&](Value v) { return made_by(graph_, v) == state; };
      if (!live_[static_cast<size_t>(id)] || moves_nothing(id)) continue;
      if (std::ranges::any_of(graph_.node(id).operands, reads)) earlier_readers_[end].push_back(id);
    }
  }

  enum class State : uint8_t {
    waits,    ///< Its turn has not come.
    put_off,  ///< Its turn has come, and nobody needs it.
    early,    ///< It has its place, before its turn.
    placed,
  };
  State& state(int id) { return state_[static_cast<size_t>(id)]; }
  bool done(int id) const {
    const State s = state_[static_cast<size_t>(id)];
    return s == State::early || s == State::placed;
  }
  int kind(int id) const { return kinds_.of[static_cast<size_t>(id)]; }
  /// Such a node has its place when somebody needs it.
  bool moves_nothing(int id) const { return ir::moves_nothing(graph_.node(id)); }

  int64_t workspace(int id) const { return kinds_.workspace[static_cast<size_t>(id)]; }
  int64_t result_bytes(int id) const {
    int64_t bytes = 0;
    for (const ir::Type& type : graph_.node(id).types) bytes += type.bytes();
    return bytes;
  }
  /// Of a large tensor's part that part alone: others need the rest as well.
  int64_t operand_bytes(int id) const {
    int64_t bytes = 0;
    for (const Value operand : graph_.node(id).operands) {
      if (!ir::has_trait(graph_.node(made_by(graph_, operand)), ir::kLeaf)) bytes += graph_.type(operand).bytes();
    }
    return bytes;
  }
  /// Whether so many bytes more may be kept alive by one node.
  bool fits(int64_t bytes) const {
    constexpr int64_t kShare = 8, kLittle = int64_t{2} << 20;  // Whatever the arena.
    return bytes <= std::max(kLittle, most_bytes_ / kShare) && held_ + bytes <= most_bytes_;
  }

  bool shares(int id) const { return kinds_.shares[static_cast<size_t>(id)]; }
  /// Of the bytes that are kept alive, those that the node's are added to.
  int64_t& held(int id) { return shares(id) ? held_by_sharers_ : held_; }
  bool may_be_put_off(int id) const {
    if (kind(id) < 0) return false;
    const int64_t bytes = operand_bytes(id);
    return shares(id) ? held_by_sharers_ + bytes <= spare_[static_cast<size_t>(id)] : fits(bytes);
  }

  /// The node's turn in the old order.
  void meet(int id) {
    if (state(id) == State::early) held_ -= result_bytes(id);
    if (!live_[static_cast<size_t>(id)] || done(id) || moves_nothing(id)) return;
    if (may_be_put_off(id)) {
      state(id) = State::put_off;
      held(id) += operand_bytes(id);
    } else {
      require(id);
    }
  }

  void require(int id) {
    if (done(id)) return;
    for (const Value v : graph_.node(id).operands) require(v.node);
    if (const auto readers = earlier_readers_.find(id); readers != earlier_readers_.end()) {
      for (const int reader : readers->second) require(reader);
    }
    if (done(id)) return;
    if (kind(id) < 0) {
      place(id);
    } else {
      place_with_others(id);
    }
  }

  void place(int id) {
    state(id) = State::placed;
    order_.push_back(id);
  }

  /// Whether all that the node reads has its place, or is part of what has.
  bool is_ready(int id) const {
    return std::ranges::all_of(graph_.node(id).operands, [&](Value v) {
      while (!done(v.node) && moves_nothing(v.node)) v = graph_.node(v).operands[0];
      return done(v.node);
    });
  }

  /// Whether the node waits, itself or through others that were put off, for one of this kind.
  bool waits_for(int id, int kind, std::set<int>& seen) const {
    return std::ranges::any_of(graph_.node(id).operands, [&](Value v) {
      if (done(v.node) || !seen.insert(v.node).second) return false;
      return this->kind(v.node) == kind || waits_for(v.node, kind, seen);
    });
  }

  /// Others that were put off may read what was put off as well: that comes first.
  void require_operands_of_others(int id) {
    const auto own = static_cast<size_t>(kind(id));
    if (gathers_[own]) return;
    gathers_[own] = true;
    for (const int other : kinds_.nodes[own]) {
      std::set<int> seen;
      if (other == id || state(other) != State::put_off || waits_for(other, kind(id), seen)) continue;
      for (const Value v : graph_.node(other).operands) require(v.node);
    }
    gathers_[own] = false;
  }

  /// The operands of `id` have their places.
  void place_with_others(int id) {
    require_operands_of_others(id);
    if (done(id)) return;
    std::vector<int> members;
    int64_t workspace = this->workspace(id);
    const int64_t most_workspace = std::max(most_bytes_, 2 * kinds_.alone[static_cast<size_t>(id)]);
    for (const int other : kinds_.nodes[static_cast<size_t>(kind(id))]) {
      if (done(other) || (other != id && !is_ready(other))) continue;
      const auto others = std::ssize(members) + (other < id ? 1 : 0);
      if (other != id && shares(id) && others >= kMostSharers) continue;
      if (other != id && workspace + this->workspace(other) > most_workspace) continue;
      if (other != id && state(other) == State::waits) {
        if (!fits(result_bytes(other))) continue;
        held_ += result_bytes(other);
      }
      if (other != id) workspace += this->workspace(other);
      members.push_back(other);
    }
    // What is left of their operands moves nothing.
    for (const int member : members) {
      for (const Value v : graph_.node(member).operands) require(v.node);
    }
    const int first = static_cast<int>(order_.size());
    for (const int member : members) {
      const bool early = member != id && state(member) == State::waits;
      if (state(member) == State::put_off) held(member) -= operand_bytes(member);
      place(member);
      if (early) state(member) = State::early;
    }
    if (members.size() > 1) together_.push_back({first, static_cast<int>(order_.size()) - 1});
  }

  const Graph& graph_;
  const Kinds& kinds_;
  const int64_t most_bytes_;
  const std::vector<int64_t> spare_;
  const std::vector<bool> live_;
  std::vector<State> state_;
  std::map<int, std::vector<int>> earlier_readers_;  // by the node that makes a state's next value
  std::vector<bool> gathers_;                        // by kind: its operands are being given places
  std::vector<int> order_;
  std::vector<passes::NodeRange> together_;
  int64_t held_ = 0, held_by_sharers_ = 0;  // kept alive by nodes that are not where they were
};

}  // namespace

JoinedNodes join_equal_nodes(Graph graph, const ir::DeviceSpec& device, const TuningTable* decisions, bool once) {
  constexpr int64_t kShare = 32, kLeast = int64_t{1} << 18;  // Of a small arena a few per cent are nothing.
  constexpr int64_t kShares = 4;  // Of the arena's free bytes: not all of them lie in one piece.
  passes::MemoryPlan memory = passes::plan_memory(graph, {.once = once});
  const Kinds kinds = find_kinds(graph, memory, device, decisions);
  if (kinds.nodes.empty()) return {std::move(graph), std::move(memory)};
  const int64_t most = std::max(kLeast, memory.arena_bytes / kShare);
  const std::vector<int64_t> free = bytes_free(graph, memory);
  // What is kept alive need not be so at the peak: less is tried only where it is.
  for (int64_t held = most; held > 0; held /= 4) {
    for (int64_t share = kinds.any_shares() ? kShares : 0; share >= 0; --share) {
      std::vector<int64_t> spare = free;
      for (int64_t& bytes : spare) bytes = bytes / kShares * share;
      passes::MemoryOptions options{.once = once};
      Graph moved = Mover(graph, kinds, held, std::move(spare)).run(options.together);
      if (options.together.empty()) return {std::move(graph), std::move(memory)};
      passes::MemoryPlan plan = passes::plan_memory(moved, options);
      if (plan.arena_bytes <= memory.arena_bytes + most) return {std::move(moved), std::move(plan)};
    }
  }
  return {std::move(graph), std::move(memory)};
}

}  // namespace difuse::codegen::cuda
