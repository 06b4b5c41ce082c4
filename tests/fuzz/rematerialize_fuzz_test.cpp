// Random small networks with their gradients, fused for a GPU and run on the CPU: what is computed again instead of
// kept has every bit of what was kept, in the memory that is planned for it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "ir/text.h"
#include "passes/pipeline.h"
#include "passes/rematerialize.h"
#include "tests/fuzz/generator.h"
#include "tests/fuzz/network.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/backend/rematerialized.h"
#include "tests/support/op_rows.h"

namespace difuse {
namespace {

using ir::Graph;
using testing::kFirstSeed;

TEST(RematerializeFuzz, KeepsEveryBit) {
  constexpr int kGraphs = 120;
  const ir::DeviceSpec& device = *ir::find_device_spec("h100");
  int changed = 0;
  for (uint64_t seed = kFirstSeed; seed < kFirstSeed + kGraphs; ++seed) {
    const Graph graph = testing::random_network(seed);
    const auto precision = seed % 2 == 0 ? passes::Precision::f32 : passes::Precision::bf16;
    const Graph kept = passes::run_pipeline(graph, device, {.precision = precision}),
                again = testing::rematerialized(kept);
    if (ir::print(again) == ir::print(kept)) continue;
    ++changed;
    EXPECT_LT(passes::peak_image_bytes(again), passes::peak_image_bytes(kept)) << "seed " << seed;
    EXPECT_EQ(again.size(), kept.size()) << "seed " << seed;
    const ir::TensorMap inputs = testing::random_leaves(graph, ir::Op::input, seed);
    testing::expect_same(testing::run_cpu(again, inputs), testing::run_cpu(kept, inputs), fmt::format("seed {}", seed));
    if (HasFailure()) FAIL() << ir::print(graph);
  }
  EXPECT_GE(changed, kGraphs / 3);
  fmt::print("seeds {} to {}: {} graphs changed\n", kFirstSeed, kFirstSeed + kGraphs - 1, changed);
}

}  // namespace
}  // namespace difuse
