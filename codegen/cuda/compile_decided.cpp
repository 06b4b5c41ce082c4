#include "codegen/cuda/compile_decided.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

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
    std::set<std::pair<std::string, std::string>> refused;  // problem and tile
    for (const KernelCall& call : plan.calls) {
      const auto& error = results[static_cast<size_t>(call.source)].error;
      if (!error || call.choice < 0) continue;
      for (const DecidedTile& decided : plan.decided) {
        if (!computes(call, decided.node) || decided.choice != call.choice) continue;
        if (!refused.emplace(decided.problem, decided.tile).second) continue;
        warn(fmt::format("the tuned tile {} is not used: {}", decided.tile, error->what()));
      }
    }
    if (refused.empty()) return results;
    for (const auto& [problem, tile] : refused) decisions.forbid(problem, tile);
    plan = lower_cuda(std::move(plan.graph), std::move(plan.memory), device, &decisions);
  }
}

}  // namespace difuse::codegen::cuda
