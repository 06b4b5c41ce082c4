// Filters that are turned: every element comes to its place, and one kernel turns them all, in one launch.
#include <gtest/gtest.h>

#include "codegen/cuda/join/nodes.h"
#include "codegen/cuda/lower_cuda.h"
#include "codegen/jit/nvrtc.h"
#include "ir/builder.h"
#include "tests/codegen/cuda/body_run.h"

namespace difuse::codegen::cuda {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;

Graph repack(int64_t outputs, int64_t taps, int64_t inputs, DType dtype = DType::f32) {
  Graph body("body");
  Builder b(body);
  const ir::Value filter = b.input("0", {dtype, {outputs, taps, taps, inputs}});
  body.set_output("0", b.repack(filter, ir::WeightLayout::flipped));
  return body;
}

Recorder emitted(const Placed& placed) {
  EXPECT_TRUE(accepts_repack(placed.spec.body));
  Recorder recorder;
  emit_repack(placed.spec, recorder);
  return recorder;
}

TEST(Repack, BringsEveryElementToItsPlace) {
  // Whole tiles, parts of tiles in both channels, less than one, and more of them than blocks.
  for (const Graph& body : {repack(64, 1, 128), repack(72, 3, 40), repack(16, 3, 200), repack(130, 1, 66),
                            repack(256, 3, 136), repack(40, 3, 72, DType::bf16), repack(65, 1, 17, DType::f16)}) {
    const Placed placed = place(body, {}, h100());
    const ir::TensorMap inputs = random_inputs(body, false);
    const ir::TensorMap got = run_drafts(placed, emitted(placed), inputs, "sm_90a");
    EXPECT_EQ(got.at("0").data, ir::run_reference(body, inputs, {}).outputs.at("0").data);
  }
}

TEST(Repack, NoExtentIsInTheSource) {
  const Graph small = repack(64, 1, 128), large = repack(200, 3, 72);
  const Placed of_small = place(small, {}, h100()), of_large = place(large, {}, h100());
  EXPECT_EQ(emitted(of_small).drafts[0].source, emitted(of_large).drafts[0].source);
  EXPECT_EQ(emitted(of_small).drafts[0].grid.x, 2);
  EXPECT_EQ(emitted(of_large).drafts[0].grid.x, 64);
}

TEST(Repack, CompilesWithoutSpills) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  const Graph floats = repack(64, 3, 64), halves = repack(64, 3, 64, DType::bf16);
  for (const Graph* body : {&floats, &halves}) {
    expect_compiles(*nvrtc, emitted(place(*body, {}, h100())).drafts[0], {"sm_80", "sm_90a"});
  }
}

TEST(Repack, LeavesTheRestToOthers) {
  EXPECT_TRUE(accepts_repack(repack(16, 3, 16)));
  EXPECT_FALSE(accepts_repack(repack(64, 3, 3)));
  EXPECT_FALSE(accepts_repack(repack(3, 3, 64)));
  Graph computed("computed");
  Builder b(computed);
  const ir::Value filter = b.input("0", {DType::f32, {64, 3, 3, 64}});
  computed.set_output("0", b.neg(b.repack(filter, ir::WeightLayout::flipped)));
  EXPECT_FALSE(accepts_repack(computed));
}

TEST(Repack, FiltersOfAnyExtentsAreOneLaunch) {
  Graph graph("graph");
  Builder b(graph);
  for (const auto& [name, outputs, taps] : {std::tuple("a", 64, 3), {"b", 128, 1}, {"c", 96, 3}}) {
    const ir::Value x = b.input(std::string("x") + name, {DType::f32, {2, 8, 8, outputs}});
    const ir::Value w = b.input(std::string("w") + name, {DType::f32, {outputs, taps, taps, 32}});
    const ir::Value turned = b.repack(w, ir::WeightLayout::flipped);
    graph.set_output(name, b.conv_fprop(x, turned, 1, taps / 2));
  }
  JoinedNodes joined = join_equal_nodes(graph, h100());
  const CudaPlan plan = lower_cuda(std::move(joined.graph), std::move(joined.memory), h100());
  int launches = 0, members = 0;
  for (const KernelCall& call : plan.calls) {
    if (!plan.sources[static_cast<size_t>(call.source)].name.starts_with("repack")) continue;
    ++launches;
    members += static_cast<int>(call.members);
  }
  EXPECT_EQ(launches, 1);
  EXPECT_EQ(members, 3);
}

}  // namespace
}  // namespace difuse::codegen::cuda
