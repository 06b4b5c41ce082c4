// Random small networks with their gradients, fused so that convolutions compute the images that they read: each op
// keeps its meaning and every bit, on the CPU and as a GPU would fuse them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ir/text.h"
#include "passes/pipeline.h"
#include "runtime/compile.h"
#include "tests/fuzz/generator.h"
#include "tests/fuzz/network.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/op_rows.h"

namespace difuse {
namespace {

using ir::Graph;
using passes::Precision;
using passes::Prologues;
using testing::kFirstSeed;

constexpr int kNetworks = 120;

Precision any_precision_of(uint64_t seed) {
  constexpr Precision kAll[] = {Precision::f32, Precision::bf16, Precision::tf32};
  return kAll[seed % 3];
}

TEST(PrologueFuzz, CpuPlansKeepEveryBit) {
  int changed = 0;
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + kNetworks; ++seed) {
    const Graph graph = testing::random_network(seed);
    const ir::TensorMap inputs = testing::random_leaves(graph, ir::Op::input, seed);
    const auto run = [&](Prologues prologues, bool reuse_memory) {
      passes::FusionReport report;
      runtime::CompileSettings settings;
      settings.precision = any_precision_of(seed);
      settings.prologues = prologues;
      settings.reuse_memory = reuse_memory;
      settings.report = &report;
      const auto executor = runtime::compile(graph, {}, 2, settings);
      const auto computes = [](const std::string& line) { return line.starts_with("computed"); };
      changed += static_cast<int>(std::ranges::count_if(report.lines, computes) > 0);
      return testing::run(*executor, inputs, {});
    };
    const testing::CpuRun stored = run(Prologues::never, true);
    testing::expect_same(run(Prologues::always, true), stored, fmt::format("seed {}", seed));
    testing::expect_same(run(Prologues::always, false), stored, fmt::format("fresh memory, seed {}", seed));
    if (HasFailure()) FAIL() << ir::print(graph);
  }
  EXPECT_GE(changed, kNetworks);  // Of two runs each.
}

std::string all_but_filter_gradients(const Graph& body) {
  for (int id = 0; id < body.size(); ++id) {
    if (body.node(id).op == ir::Op::conv_wgrad || body.node(id).op == ir::Op::group_finish) return "it cannot";
  }
  return {};
}

/// With kernels that take whatever they are given, or all but what needs another plan.
TEST(PrologueFuzz, GpuPlansKeepTheMeaning) {
  const ir::DeviceSpec& device = *ir::find_device_spec("h100");
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + kNetworks; ++seed) {
    const Graph graph = testing::random_network(seed);
    passes::PipelineOptions stored{.precision = any_precision_of(seed)};
    passes::PipelineOptions computed = stored;
    computed.fusion.prologues = Prologues::always;
    computed.fusion.prologue_limits = [](const Graph&) { return std::string(); };
    if (seed % 2 == 0) computed.fusion.prologue_limits = all_but_filter_gradients;
    const Graph fused = passes::run_pipeline(graph, device, computed);
    EXPECT_EQ(ir::print(passes::run_pipeline(fused, device, computed)), ir::print(fused)) << "seed " << seed;
    const ir::TensorMap inputs = testing::random_leaves(graph, ir::Op::input, seed);
    testing::expect_same(testing::run_cpu(fused, inputs),
                         testing::run_cpu(passes::run_pipeline(graph, device, stored), inputs),
                         fmt::format("seed {}", seed));
    if (HasFailure()) FAIL() << ir::print(graph);
  }
}

}  // namespace
}  // namespace difuse
