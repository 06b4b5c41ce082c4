#include "codegen/cuda/compile_decided.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/lower_cuda.h"

namespace difuse::codegen::cuda {
namespace {

bool computes(const KernelCall& call, int node) {
  return call.node == node || std::ranges::find(call.more_nodes, node) != call.more_nodes.end();
}

}  // namespace

std::vector<CompileResult> compile_decided(
    CudaPlan& plan, const ir::DeviceSpec& device, TuningTable& decisions,
    const std::function<std::vector<CompileResult>(std::span<const CudaSource>)>& compile,
    const std::function<void(const std::string& line)>& warn) {
  while (true) {
    std::vector<CompileResult> results = compile(plan.sources);
    bool is_new = false;
    const auto forbid_refused = [&](const KernelCall& call) {
      const auto& error = results[static_cast<size_t>(call.source)].error;
      if (!error || call.choice < 0) return;
      for (const ChosenTile& chosen : plan.chosen) {
        if (!computes(call, chosen.node) || chosen.choice != call.choice) continue;
        if (decisions.is_forbidden(chosen.problem, chosen.tile)) continue;
        decisions.forbid(chosen.problem, chosen.tile);
        is_new = true;
        warn(fmt::format("the {}tile {} is not used: {}", chosen.is_tuned ? "tuned " : "", chosen.tile, error->what()));
      }
    };
    std::ranges::for_each(plan.calls, forbid_refused);
    std::ranges::for_each(plan.once, forbid_refused);
    if (!is_new) return results;
    plan = lower_cuda(std::move(plan.graph), std::move(plan.memory), device, &decisions);
  }
}

}  // namespace difuse::codegen::cuda
