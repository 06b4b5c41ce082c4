#include "codegen/cuda/tuning_site.h"

#include <algorithm>
#include <map>

#include "codegen/cuda/lower_cuda.h"
#include "codegen/cuda/plan_writer.h"
#include "passes/memory_plan.h"

namespace difuse::codegen::cuda {

TuningSite::TuningSite(const KernelSpec& spec, int index, TileChoice choice)
    : name_(spec.name),
      body_(std::make_shared<const ir::Graph>(spec.body)),
      device_(std::make_shared<const ir::DeviceSpec>(spec.device)),
      spec_(std::make_shared<KernelSpec>(KernelSpec{*body_, spec.operands, spec.alignment, spec.results,
                                                    spec.result_alignment, spec.name, spec.flops, *device_,
                                                    spec.is_tf32})),
      index_(index),
      choice_(std::move(choice)) {
  // Not better aligned than in the plan: the source depends on it.
  const auto place = [&](Argument& argument, int64_t alignment, int64_t bytes) {
    argument.value = arena_bytes_ + alignment % passes::kArenaAlignment;
    arena_bytes_ =
        (argument.value + bytes + passes::kArenaAlignment - 1) / passes::kArenaAlignment * passes::kArenaAlignment;
  };
  for (size_t i = 0; i < spec_->operands.size(); ++i) {
    Argument& operand = spec_->operands[i];
    const ir::Value input = body_->find_input(std::to_string(i));
    if (operand.kind == Argument::Kind::number || !input.valid()) continue;
    const ir::Type& type = body_->type(input);
    place(operand, spec_->alignment[i], type.bytes());
    operands_.push_back({operand.value, type, spec_->reads_tf32(static_cast<int>(i))});
  }
  results_begin_ = arena_bytes_;
  for (size_t r = 0; r < spec_->results.size(); ++r) {
    if (!spec_->wanted(r)) continue;
    place(spec_->results[r], spec_->result_alignment[r], body_->type(body_->outputs()[r].value).bytes());
  }
}

CudaPlan TuningSite::plan(std::span<const size_t> candidates) const {
  CudaPlan plan;
  plan.memory.arena_bytes = arena_bytes_;
  PlanWriter writer(plan, *device_);
  for (size_t i = 0; i < candidates.size(); ++i) {
    KernelSpec spec = *spec_;
    // Other choices of the emitter stay with their first candidates.
    spec.tiles.assign(static_cast<size_t>(index_) + 1, 0);
    spec.tiles.back() = candidates[i];
    writer.emit(spec, static_cast<int>(i));
  }
  return plan;
}

std::vector<TuningSite> tuning_sites(const CudaPlan& plan, const ir::DeviceSpec& device) {
  std::vector<TuningSite> sites;
  std::map<TuningTable::Key, size_t> known;
  for_each_spec(plan.graph, plan.memory, device, [&](KernelSpec spec, int) {
    const Emitter& emitter = find_emitter(spec);
    if (emitter.choices == nullptr) return;
    spec.members = 1;  // It is timed alone.
    int index = 0;
    for (TileChoice& choice : emitter.choices(spec)) {
      const auto [it, fresh] = known.try_emplace({choice.problem, choice.batch}, sites.size());
      if (fresh) {
        sites.emplace_back(spec, index, std::move(choice));
      } else {
        ++sites[it->second].uses;
      }
      ++index;
    }
  });
  return sites;
}

}  // namespace difuse::codegen::cuda
