#include "codegen/cuda/join/order.h"

#include <algorithm>
#include <iterator>

#include "codegen/cuda/join/overlap.h"

namespace difuse::codegen::cuda {
namespace {

/// A node that lies where its operand lies has no launches: who reads it reads the operand. Copies of states come after
/// the last node, under the numbers of what they copy.
std::vector<std::vector<int>> first_reads(const CudaPlan& plan) {
  const ir::Graph& graph = plan.graph;
  std::vector<std::vector<int>> first(static_cast<size_t>(graph.size()));
  const auto of = [&](ir::Value v) -> int& {
    return first[static_cast<size_t>(v.node)][static_cast<size_t>(v.result)];
  };
  for (int id = 0; id < graph.size(); ++id) {
    first[static_cast<size_t>(id)].assign(graph.node(id).types.size(), graph.size());
  }
  for (const passes::StateCopy& copy : plan.memory.state_copies) of(copy.from) = copy.from.node;
  const std::vector<bool> live = graph.live();
  for (int id = graph.size() - 1; id >= 0; --id) {
    if (!live[static_cast<size_t>(id)]) continue;
    for (const ir::Value v : graph.node(id).operands) {
      of(v) = std::min(of(v), passes::is_alias(graph, plan.memory, id) ? of({id, 0}) : id);
    }
  }
  return first;
}

/// Whether the launch is a second stage that reads only what lies in the workspace.
bool reads_workspace_alone(const KernelCall& call, const KernelSpec& spec) {
  bool reads = false, writes = false;
  for (const Argument& argument : call.arguments) {
    if (argument.kind == Argument::Kind::arena) {
      if (std::ranges::find(spec.results, argument) == spec.results.end()) return false;
      writes = true;
    }
    reads = reads || argument.kind == Argument::Kind::workspace;
  }
  return call.is_second_stage && reads && writes && call.tensor_maps.empty();
}

bool share_memory(const KernelCall& a, const KernelCall& b) {
  return std::ranges::any_of(a.arguments, [&](const Argument& argument) {
    const bool memory = argument.kind == Argument::Kind::arena || argument.kind == Argument::Kind::workspace;
    return memory && std::ranges::count(b.arguments, argument) > 0;
  });
}

int64_t bytes_of(const std::vector<WorkspaceRange>& ranges) {
  int64_t bytes = 0;
  for (const WorkspaceRange& range : ranges) bytes += range.end - range.begin;
  return bytes;
}

}  // namespace

LaunchOrder::LaunchOrder(CudaPlan& plan, int64_t most_held)
    : plan_(plan), joiner_(plan), most_held_(most_held), first_reads_(first_reads(plan)) {}

/// Of what the launch makes.
int LaunchOrder::first_read(int node, const KernelSpec& spec, const KernelCall& call) const {
  int first = plan_.graph.size();
  for (size_t r = 0; r < spec.results.size(); ++r) {
    if (std::ranges::count(call.arguments, spec.results[r]) == 0) continue;
    first = std::min(first, first_reads_[static_cast<size_t>(node)][r]);
  }
  return first;
}

/// All calls so far are of what runs once.
void LaunchOrder::begin_step() {
  run_group();
  while (!waiting_.empty()) run_waiting(0);
  plan_.once = std::move(plan_.calls);
  plan_.calls.clear();
  taken_ = 0;
  in_step_ = true;
}

TakenSums LaunchOrder::begin(int node, const KernelSpec& spec) {
  if (!in_step_ && (node >= plan_.memory.once_end || node <= latest_)) begin_step();
  if (node > range_.last || node <= latest_) run_group();
  if (node > latest_ && node > range_.last) {
    range_ = {node, node};
    for (const passes::NodeRange& range : plan_.memory.together) {
      if (range.first <= node && node <= range.last) range_ = range;
    }
  }
  TakenSums taken = take(node, spec);
  for (size_t i = 0; i < waiting_.size();) {
    if (node <= latest_ || waiting_[i].until <= node) {
      run_waiting(i);
      i = 0;
    } else {
      ++i;
    }
  }
  return taken;
}

/// A node that runs with others has their kernel.
TakenSums LaunchOrder::take(int node, const KernelSpec& spec) {
  std::vector<PartSums> sums;
  std::vector<size_t> places;
  const bool is_alone = node > latest_ && range_.first == range_.last;
  for (size_t i = 0; i < waiting_.size() && is_alone; ++i) {
    if (waiting_[i].until != node || waiting_[i].call.part_sums.images == 0) continue;
    sums.push_back(waiting_[i].call.part_sums);
    places.push_back(i);
  }
  TakenSums taken(spec, sums);
  for (size_t s = sums.size(); s-- > 0;) {
    if (!taken.taken(s)) continue;
    const auto at = waiting_.begin() + static_cast<std::ptrdiff_t>(places[s]);
    taken_over_.push_back(std::move(*at));
    waiting_.erase(at);
  }
  return taken;
}

std::vector<WorkspaceRange> LaunchOrder::held() const {
  std::vector<WorkspaceRange> ranges;
  for (const auto& lowered : group_) std::ranges::copy(lowered.workspace, std::back_inserter(ranges));
  for (const auto* list : {&waiting_, &taken_over_}) {
    for (const Waiting& waiting : *list) std::ranges::copy(waiting.workspace, std::back_inserter(ranges));
  }
  return ranges;
}

void LaunchOrder::end(int node, const KernelSpec& spec, bool independent, std::vector<WorkspaceRange> workspace) {
  Lowered lowered{{}, {}, std::move(workspace)};
  const auto begin = plan_.calls.begin() + static_cast<std::ptrdiff_t>(taken_);
  std::vector<KernelCall> calls(begin, plan_.calls.end());
  plan_.calls.erase(begin, plan_.calls.end());
  for (KernelCall& call : calls) call.is_copy = node <= latest_;
  if (independent) calls = joiner_.join(calls);
  // What has no room for another of its kind gains nothing by waiting, and is in L2 now.
  constexpr int64_t kLeastTogether = 2;
  const bool may_wait = node > latest_ && bytes_of(lowered.workspace) * kLeastTogether <= most_held_;
  for (size_t i = 0; i < calls.size(); ++i) {
    bool waits = may_wait && i > 0 && reads_workspace_alone(calls[i], spec);
    for (size_t later = i + 1; later < calls.size(); ++later) waits = waits && !share_memory(calls[i], calls[later]);
    const int until = waits ? first_read(node, spec, calls[i]) : node;
    if (until > node) {
      lowered.second.push_back({std::move(calls[i]), until, lowered.workspace});
    } else {
      lowered.calls.push_back(std::move(calls[i]));
    }
  }
  group_.push_back(std::move(lowered));
  for (Waiting& waiting : taken_over_) plan_.taken_over.push_back(std::move(waiting.call));
  taken_over_.clear();
  latest_ = std::max(latest_, node);
}

void LaunchOrder::run_group() {
  for (size_t stage = 0;; ++stage) {
    std::vector<KernelCall> calls;
    for (const Lowered& lowered : group_) {
      if (stage < lowered.calls.size()) calls.push_back(lowered.calls[stage]);
    }
    if (calls.empty()) break;
    std::ranges::move(joiner_.join(calls), std::back_inserter(plan_.calls));
  }
  for (Lowered& lowered : group_) {
    std::ranges::move(lowered.second, std::back_inserter(waiting_));
  }
  group_.clear();
  taken_ = plan_.calls.size();
  keep_within_limit();
}

/// All that are equal to waiting_[first].
void LaunchOrder::run_waiting(size_t first) {
  std::vector<KernelCall> calls;
  std::vector<Waiting> others;
  for (size_t i = 0; i < waiting_.size(); ++i) {
    if (i == first || joiner_.equal(waiting_[first].call, waiting_[i].call)) {
      calls.push_back(waiting_[i].call);
    } else {
      others.push_back(waiting_[i]);
    }
  }
  std::ranges::move(joiner_.join(calls), std::back_inserter(plan_.calls));
  waiting_ = std::move(others);
  taken_ = plan_.calls.size();
}

/// What holds most goes first.
void LaunchOrder::keep_within_limit() {
  const auto bytes_held = [&](const KernelCall* kind) {
    int64_t bytes = 0;
    for (const Waiting& waiting : waiting_) {
      if (kind == nullptr || joiner_.equal(*kind, waiting.call)) bytes += bytes_of(waiting.workspace);
    }
    return bytes;
  };
  while (bytes_held(nullptr) > most_held_) {
    int64_t most = -1;
    size_t largest = 0;
    for (size_t i = 0; i < waiting_.size(); ++i) {
      const int64_t bytes = bytes_held(&waiting_[i].call);
      if (bytes > most) most = bytes, largest = i;
    }
    run_waiting(largest);
  }
}

void LaunchOrder::finish() {
  if (!in_step_) begin_step();
  run_group();
  while (!waiting_.empty()) run_waiting(0);
  joiner_.prepare_both();
  overlap_launches(plan_);
  remove_unused_sources(plan_);
}

}  // namespace difuse::codegen::cuda
