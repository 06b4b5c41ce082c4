#include "codegen/cuda/plan_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "codegen/cuda/join/overlap.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/jit/sha256.h"

namespace difuse::codegen::cuda {
namespace {

std::string identifier(std::string name) {
  constexpr size_t kLongest = 96;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name.substr(0, kLongest);
}

}  // namespace

PlanWriter::PlanWriter(CudaPlan& plan, const ir::DeviceSpec& device, const TuningTable* decisions)
    : plan_(plan), decisions_(decisions), architecture_(ir::architecture_name(device)) {}

/// The best estimate where the table has nothing, or names a tile that the emitter no longer has. Where every tile is
/// forbidden it is the best estimate again, for the compiler's error to be told.
KernelSpec PlanWriter::chosen(const KernelSpec& spec, const Emitter& emitter) {
  KernelSpec with_tiles = spec;
  const std::vector<TileChoice> choices = emitter.choices(spec);
  with_tiles.tiles.assign(choices.size(), 0);
  for (size_t c = 0; c < choices.size(); ++c) {
    const TileChoice& choice = choices[c];
    const Decision* decision = decisions_->find(choice.problem, choice.batch);
    auto found = choice.tiles.end();
    if (decision != nullptr) found = std::ranges::find(choice.tiles, decision->tile);
    const bool is_tuned = found != choice.tiles.end();
    if (!is_tuned) {
      found = std::ranges::find_if(
          choice.tiles, [&](const std::string& tile) { return !decisions_->is_forbidden(choice.problem, tile); });
    }
    if (found == choice.tiles.end()) continue;
    with_tiles.tiles[c] = static_cast<size_t>(found - choice.tiles.begin());
    plan_.chosen.push_back({node_, static_cast<int>(c), choice.problem, *found, is_tuned});
  }
  return with_tiles;
}

void PlanWriter::emit(const KernelSpec& spec, int node, std::vector<WorkspaceRange> held) {
  node_ = node;
  held_ = std::move(held);
  own_.clear();
  const Emitter& emitter = find_emitter(spec);
  if (emitter.choices != nullptr && decisions_ != nullptr && spec.tiles.empty()) {
    emitter.emit(chosen(spec, emitter), *this);
  } else {
    emitter.emit(spec, *this);
  }
}

Argument PlanWriter::workspace(int64_t bytes) {
  WorkspaceRange range{0, (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment};
  for (size_t i = 0; i < held_.size(); ++i) {
    if (range.end <= held_[i].begin || held_[i].end <= range.begin) continue;
    range = {held_[i].end, held_[i].end + range.end - range.begin};
    i = static_cast<size_t>(-1);  // It may meet what it has passed.
  }
  own_.push_back(range);
  held_.push_back(range);
  plan_.workspace_bytes = std::max(plan_.workspace_bytes, range.end);
  return {Argument::Kind::workspace, range.begin};
}

/// What the call has of the workspace, whether the node's own or what another left there.
std::vector<WorkspaceRange> PlanWriter::ranges_of(const KernelCall& call) const {
  std::vector<WorkspaceRange> ranges;
  const auto add = [&](const Argument& argument) {
    if (argument.kind != Argument::Kind::workspace) return;
    const auto found = std::ranges::find(held_, argument.value, &WorkspaceRange::begin);
    if (found != held_.end()) ranges.push_back(*found);
  };
  for (const Argument& argument : call.arguments) add(argument);
  for (const TensorMapSpec& map : call.tensor_maps) add(map.start);
  return ranges;
}

KernelCall PlanWriter::call_of(KernelDraft draft) {
  draft.source = with_waits_parameter(draft.source);
  draft.arguments.push_back(Argument::number(0));
  std::string text = draft.source;
  for (const std::string& option : draft.options) text += '\0' + option;
  const auto [it, fresh] = sources_.try_emplace(std::move(text), static_cast<int>(plan_.sources.size()));
  if (fresh) {
    Sha256 hash;
    hash.add_field(draft.source);
    for (const std::string& option : draft.options) hash.add_field(option);
    const std::string name = fmt::format("{}_{}", identifier(draft.name), hash.hex().substr(0, 8));
    plan_.sources.push_back({name, filled(draft.source, {{"kernel", name}}), architecture_, draft.options});
  }
  KernelCall call{it->second, node_, draft.grid, draft.threads, draft.shared_bytes, std::move(draft.arguments)};
  call.tensor_maps = std::move(draft.tensor_maps);
  call.workspace = ranges_of(call);
  call.bytes = draft.bytes, call.flops = draft.flops, call.choice = draft.choice;
  call.is_second_stage = draft.is_second_stage;
  call.part_sums = std::move(draft.part_sums);
  call.sharers = draft.sharers;
  call.early = draft.early;
  return call;
}

void PlanWriter::launch(KernelDraft draft) { plan_.calls.push_back(call_of(std::move(draft))); }

void PlanWriter::prepare(KernelDraft draft) { plan_.prepared.push_back(call_of(std::move(draft))); }

}  // namespace difuse::codegen::cuda
