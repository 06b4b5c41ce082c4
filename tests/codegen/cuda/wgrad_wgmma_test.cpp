// Gradients of filters on Hopper: run on the CPU they give what the reference gives, their kernels compile without
// spills, the work is shared out evenly, and they are chosen where they must be.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "codegen/cuda/emit/wgrad_wgmma/problem.h"
#include "codegen/cuda/emit/wgrad_wgmma/tiles.h"
#include "codegen/cuda/lower_cuda.h"
#include "codegen/jit/nvrtc.h"
#include "ir/builder.h"
#include "ir/op.h"
#include "passes/memory_plan.h"
#include "tests/codegen/cuda/body_run.h"

namespace difuse::codegen::cuda {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Value;

/// As few processors as make the shares of small problems large.
ir::DeviceSpec with_processors(int64_t count) {
  ir::DeviceSpec device = h100();
  device.processors = count;
  return device;
}

struct Shapes {
  int64_t n, h, w, c, k;
  int64_t taps = 3, pad = 1, stride = 1;
  DType dtype = DType::bf16;
};

enum class After : uint8_t { nothing, scaled, two_results };

Graph wgrad(const Shapes& s, After after = After::nothing) {
  Graph body("body");
  Builder b(body);
  const auto out = [&](int64_t extent) { return (extent + 2 * s.pad - s.taps) / s.stride + 1; };
  const Value x = b.input("0", {s.dtype, {s.n, s.h, s.w, s.c}});
  const Value dy = b.input("1", {s.dtype, {s.n, out(s.h), out(s.w), s.k}});
  const Value dw = b.conv_wgrad(x, dy, {s.stride, s.pad, s.taps, s.taps});
  if (after == After::nothing) {
    body.set_output("0", dw);
    return body;
  }
  const Value scaled = b.mul(dw, b.input("2", body.type(dw)));
  body.set_output("0", scaled);
  if (after == After::two_results) body.set_output("1", b.cast(dw, DType::bf16));
  return body;
}

Recorder emitted(const Placed& placed) {
  EXPECT_TRUE(halo_wgrad(placed.spec));
  Recorder recorder;
  emit_wgrad_wgmma(placed.spec, recorder);
  return recorder;
}

struct Case {
  std::string name;
  Graph body;
  int64_t processors = 6;
  Places places = {};
  int members = 1;

  friend void PrintTo(const Case& one, std::ostream* to) { *to << one.name; }
};

std::vector<Case> cases() {
  return {
      // Images of one tile, several to a tile, higher and wider than a tile; parts of tiles at every edge; blocks of
      // the result that share a group, and groups that share a block.
      // Images of at most 64 pixels: blocks with whole sums, and parts of them where there are many pixels.
      {"whole_sums", wgrad({6, 8, 8, 72, 136}, After::two_results)},
      {"whole_sums_in_parts", wgrad({33, 8, 8, 40, 72}, After::scaled)},
      {"whole_pointwise", wgrad({9, 5, 7, 72, 200, 1, 0}, After::scaled)},
      {"whole_pointwise_in_parts", wgrad({33, 8, 8, 72, 40, 1, 0})},
      {"whole_tiles", wgrad({2, 32, 8, 64, 64})},
      {"one_tile", wgrad({1, 16, 8, 64, 64})},
      {"few_channels", wgrad({1, 28, 12, 24, 8}), 10},
      {"odd_channels", wgrad({2, 14, 9, 72, 40}, After::scaled), 8},
      {"small_images", wgrad({5, 7, 11, 72, 136}, After::two_results), 14},
      {"flat_images", wgrad({9, 3, 23, 16, 72}), 4},
      {"more_blocks_than_groups", wgrad({3, 8, 9, 136, 72}), 8},
      {"no_border", wgrad({2, 12, 11, 40, 64, 3, 0}), 6},
      {"wide_border", wgrad({1, 9, 6, 40, 64, 3, 2}), 6},
      {"pointwise", wgrad({3, 5, 17, 72, 136, 1, 0}, After::scaled), 4},
      {"pointwise_blocks", wgrad({2, 10, 14, 328, 200, 1, 0}), 10},
      {"one_pixel", wgrad({1, 1, 1, 8, 8, 1, 0})},
      {"aligned_16", wgrad({1, 8, 9, 24, 24}, After::scaled), 3, {.alignment = 16}},
      {"whole_aligned_16", wgrad({1, 8, 8, 24, 24}, After::scaled), 3, {.alignment = 16}},
      {"half_wanted", wgrad({2, 8, 9, 24, 24}, After::two_results), 3, {.unwanted = {0}}},
      {"whole_half_wanted", wgrad({2, 8, 8, 24, 24}, After::two_results), 3, {.unwanted = {0}}},
      {"whole_tiny_images", wgrad({9, 3, 5, 16, 72}), 4},
      // Images side by side in a tile: of 4 pixels' width and less, of 2 and less, higher than a tile.
      {"abreast", wgrad({8, 4, 4, 64, 64}, After::two_results)},
      {"abreast_odd", wgrad({3, 4, 4, 96, 40}, After::scaled)},
      {"abreast_in_parts", wgrad({130, 4, 4, 40, 72}, After::scaled)},
      {"abreast_narrow", wgrad({7, 5, 3, 136, 72})},
      {"abreast_high", wgrad({3, 45, 4, 40, 72})},
      {"abreast_high_pairs", wgrad({3, 20, 4, 72, 136}), 14},
      {"abreast_no_border", wgrad({5, 6, 5, 40, 64, 3, 0})},
      {"abreast_wide_border", wgrad({5, 2, 2, 40, 64, 3, 2})},
      {"four_abreast", wgrad({21, 2, 2, 72, 64})},
      {"four_abreast_of_one_pixel", wgrad({5, 1, 1, 64, 72})},
      // Every second pixel of x, of even and odd extents, each kind of blocks.
      {"strided", wgrad({2, 32, 16, 64, 72, 3, 1, 2}, After::two_results)},
      {"strided_odd", wgrad({3, 33, 27, 72, 136, 3, 1, 2}), 14},
      {"strided_whole", wgrad({5, 15, 16, 136, 72, 3, 1, 2}, After::scaled)},
      {"strided_no_border", wgrad({3, 20, 13, 40, 64, 3, 0, 2})},
      {"strided_wide_border", wgrad({1, 31, 11, 40, 72, 3, 2, 2})},
      {"strided_abreast", wgrad({9, 8, 7, 72, 64, 3, 1, 2})},
      {"strided_four_abreast", wgrad({21, 4, 3, 64, 72, 3, 1, 2})},
      // In tf32.
      {"tf32_low_images", wgrad({6, 8, 8, 36, 68, 3, 1, 1, DType::f32}, After::two_results), 6, {.tf32 = true}},
      {"tf32_many_low_images", wgrad({33, 8, 8, 40, 72, 3, 1, 1, DType::f32}), 6, {.tf32 = true}},
      {"tf32_whole_tiles", wgrad({2, 32, 8, 64, 64, 3, 1, 1, DType::f32}), 6, {.tf32 = true}},
      {"tf32_odd_channels", wgrad({2, 14, 9, 100, 36, 3, 1, 1, DType::f32}, After::scaled), 8, {.tf32 = true}},
      {"tf32_small_images", wgrad({5, 7, 11, 68, 72, 3, 1, 1, DType::f32}, After::two_results), 14, {.tf32 = true}},
      {"tf32_large_image", wgrad({1, 48, 80, 20, 36, 3, 1, 1, DType::f32}), 4, {.tf32 = true}},
      {"tf32_no_border", wgrad({2, 12, 11, 40, 64, 3, 0, 1, DType::f32}), 6, {.tf32 = true}},
      {"tf32_wide_border", wgrad({1, 9, 6, 40, 64, 3, 2, 1, DType::f32}), 6, {.tf32 = true}},
      {"tf32_aligned_16", wgrad({1, 8, 9, 24, 24, 3, 1, 1, DType::f32}), 3, {.alignment = 16, .tf32 = true}},
      {"tf32_pointwise", wgrad({3, 5, 17, 72, 136, 1, 0, 1, DType::f32}, After::scaled), 4, {.tf32 = true}},
      {"tf32_pointwise_blocks", wgrad({2, 10, 14, 328, 200, 1, 0, 1, DType::f32}), 10, {.tf32 = true}},
      {"tf32_pointwise_wide", wgrad({2, 8, 24, 132, 64, 1, 0, 1, DType::f32}, After::two_results), 6, {.tf32 = true}},
      {"tf32_pointwise_one_pixel", wgrad({1, 1, 1, 28, 64, 1, 0, 1, DType::f32}), 6, {.tf32 = true}},
      {"tf32_pointwise_of_four", wgrad({3, 16, 17, 200, 136, 1, 0, 1, DType::f32}), 8, {.tf32 = true}, 4},
      {"tf32_one_of_three", wgrad({2, 16, 16, 72, 136, 3, 1, 1, DType::f32}), 12, {.tf32 = true}, 3},
      // A share of the processors: groups with several blocks of the result, and one pair for all.
      {"one_of_three", wgrad({2, 16, 16, 72, 136}, After::scaled), 12, {}, 3},
      {"pointwise_of_four", wgrad({3, 16, 17, 200, 136, 1, 0}), 8, {}, 4},
  };
}

class WgradWgmmaCase : public ::testing::TestWithParam<Case> {};

TEST_P(WgradWgmmaCase, AgreesWithTheReference) {
  const Case& c = GetParam();
  const ir::DeviceSpec device = with_processors(c.processors);
  const ir::TensorMap inputs = random_inputs(c.body, c.places.tf32);
  Placed placed = place(c.body, c.places, device);
  placed.spec.members = c.members;
  expect_reference(c.body, inputs, run_drafts(placed, emitted(placed), inputs, "sm_90a"), c.places.tf32);
}

TEST_P(WgradWgmmaCase, CompilesWithoutSpills) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  const Placed placed = place(GetParam().body, GetParam().places, h100());
  for (const KernelDraft& draft : emitted(placed).drafts) {
    expect_compiles(*nvrtc, draft, {"sm_90a"});
  }
}

INSTANTIATE_TEST_SUITE_P(All, WgradWgmmaCase, ::testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

TEST(WgradWgmma, TheBatchIsNotInTheSource) {
  const Graph small = wgrad({3, 16, 16, 128, 64}), large = wgrad({64, 16, 16, 128, 64});
  const Recorder of_small = emitted(place(small, {}, h100())), of_large = emitted(place(large, {}, h100()));
  ASSERT_EQ(of_small.drafts.size(), 2);
  ASSERT_EQ(of_large.drafts.size(), 2);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(of_small.drafts[i].source, of_large.drafts[i].source);
}

// Up to 2048 pixels one kernel does it all; above, the same kernel leaves parts to a second one.
TEST(WgradWgmma, ManySmallImagesAreAddedByASecondKernel) {
  const Recorder few = emitted(place(wgrad({32, 8, 8, 128, 64}), {}, h100()));
  const Recorder many = emitted(place(wgrad({33, 8, 8, 128, 64}), {}, h100()));
  ASSERT_EQ(few.drafts.size(), 1);
  ASSERT_EQ(many.drafts.size(), 2);
  EXPECT_EQ(few.workspace_bytes, 0);
  EXPECT_EQ(few.drafts[0].source, many.drafts[0].source);
  EXPECT_EQ(many.drafts[0].grid.x, 2 * few.drafts[0].grid.x);
}

std::vector<Graph> tiled() {
  return {wgrad({5, 7, 7, 72, 136}, After::scaled),
          wgrad({33, 8, 8, 8, 72}),
          wgrad({9, 5, 7, 72, 136, 1, 0}),
          wgrad({1, 20, 20, 72, 40}),
          wgrad({33, 4, 4, 72, 136}),
          wgrad({5, 16, 14, 72, 136, 3, 1, 2})};
}

TEST(WgradWgmmaTiles, NoneChangesABit) {
  std::set<std::string> seen;
  for (const Graph& body : tiled()) {
    const ir::DeviceSpec device = with_processors(3);
    Placed placed = place(body, {}, device);
    const ir::TensorMap inputs = random_inputs(body, false);
    const ir::Tensor first = run_drafts(placed, emitted(placed), inputs, "sm_90a").at("0");
    const TileChoice choice = wgrad_wgmma_choices(placed.spec).at(0);
    std::set<std::string> kinds;  // Blocks of each kind, with any ring.
    for (size_t i = 0; i < choice.tiles.size(); ++i) {
      seen.insert(choice.tiles[i]);
      if (!kinds.insert(choice.tiles[i].substr(0, choice.tiles[i].find(" slots") - 2)).second) continue;
      placed.spec.tiles = {i};
      EXPECT_EQ(run_drafts(placed, emitted(placed), inputs, "sm_90a").at("0").data, first.data) << choice.tiles[i];
    }
  }
  EXPECT_GT(seen.size(), 10u);
}

void expect_compile(const Graph& body) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  Placed placed = place(body, {}, h100());
  const TileChoice choice = wgrad_wgmma_choices(placed.spec).at(0);
  for (size_t i = 0; i < choice.tiles.size(); ++i) {
    placed.spec.tiles = {i};
    const CudaSource source = source_of(emitted(placed).drafts.front(), "sm_90a");
    EXPECT_NO_THROW(nvrtc->compile(source)) << choice.tiles[i];
  }
}

TEST(WgradWgmmaTiles, ThoseOfASmallImageCompileWithoutSpills) {
  expect_compile(wgrad({32, 8, 8, 256, 256}, After::two_results));
}

TEST(SlowWgradWgmmaTiles, AllCompileWithoutSpills) {
  for (const Graph& body : tiled()) expect_compile(body);
  expect_compile(wgrad({32, 8, 8, 256, 768, 1, 0}, After::two_results));
  expect_compile(wgrad({32, 64, 64, 192, 64}));
  expect_compile(wgrad({32, 16, 16, 192, 576, 1, 0}));
}

TEST(WgradWgmma, PairsHalveThePartialSums) {
  const Recorder paired = emitted(place(wgrad({32, 64, 64, 64, 64}), {}, h100()));
  const Recorder alone = emitted(place(wgrad({32, 64, 64, 192, 192}), {}, h100()));
  EXPECT_EQ(paired.drafts[0].grid.x, 132);
  EXPECT_EQ(paired.workspace_bytes, 66 * 64 * 576 * 4);
  EXPECT_EQ(alone.drafts[0].grid.x, 132);
  EXPECT_EQ(alone.workspace_bytes, (132 + 9 - 1) * 64 * 576 * 4);
}

// The products of one image take a while.
TEST(SlowWgradWgmma, LargeImagesAgreeWithTheReferenceWithoutPairs) {
  const Graph body = wgrad({1, 40, 40, 232, 232});
  const ir::DeviceSpec device = with_processors(7);
  const Placed placed = place(body, {}, device);
  ASSERT_EQ(halo_wgrad(placed.spec)->cluster, 1);
  const ir::TensorMap inputs = random_inputs(body, false);
  expect_reference(body, inputs, run_drafts(placed, emitted(placed), inputs, "sm_90a"), false);
}

TEST(WgradWgmma, CutsTheMeasuredShapes) {
  struct Row {
    Shapes shapes;
    int64_t rows, images, blocks, tiles, groups;
  };
  // One group for each pair of processors, or for each where the products take long; where even shares of whole blocks
  // cost less than they save, those; where there is less to do than the partial sums cost, fewer. Of small images, one
  // for each block of the result.
  for (const Row& row :
       {Row{{32, 64, 64, 64, 64}, 16, 1, 1, 1024, 66}, Row{{32, 64, 64, 192, 64}, 16, 1, 3, 1024, 66},
        Row{{32, 32, 32, 320, 128}, 16, 1, 10, 256, 60}, Row{{32, 16, 16, 192, 192}, 16, 1, 9, 64, 63},
        Row{{32, 8, 8, 256, 256}, 8, 2, 48, 16, 48}, Row{{128, 8, 8, 256, 256}, 8, 2, 48, 64, 192},
        Row{{32, 8, 8, 512, 256}, 8, 2, 96, 16, 96}, Row{{32, 64, 64, 192, 192}, 16, 1, 9, 1024, 132},
        Row{{32, 8, 8, 768, 768}, 8, 2, 216, 16, 216}, Row{{128, 4, 4, 256, 256}, 4, 2, 48, 32, 48},
        Row{{2, 28, 28, 64, 64}, 14, 1, 1, 16, 3}, Row{{32, 64, 64, 192, 64, 1, 0}, 8, 1, 1, 2048, 66},
        Row{{32, 16, 16, 192, 576, 1, 0}, 8, 1, 3, 128, 48}, Row{{32, 16, 16, 192, 192, 1, 0}, 8, 1, 3, 128, 48},
        Row{{32, 8, 8, 256, 768, 1, 0}, 8, 1, 48, 32, 48},
        Row{{32, 64, 64, 128, 64, 1, 0, 1, DType::f32}, 4, 1, 1, 4096, 66},
        Row{{32, 16, 16, 192, 576, 1, 0, 1, DType::f32}, 4, 1, 3, 256, 66},
        Row{{32, 16, 16, 320, 192, 1, 0, 1, DType::f32}, 4, 1, 2, 256, 64},
        Row{{32, 8, 8, 256, 768, 1, 0, 1, DType::f32}, 4, 1, 8, 64, 64}}) {
    const Graph body = wgrad(row.shapes);
    const Placed placed = place(body, {.tf32 = row.shapes.dtype == DType::f32}, h100());
    const auto w = halo_wgrad(placed.spec);
    ASSERT_TRUE(w);
    const std::string where = fmt::format("{}x{} {} to {}", w->height, w->width, w->inputs, w->outputs);
    EXPECT_EQ(w->rows, row.rows) << where;
    EXPECT_EQ(w->images, row.images) << where;
    const WgradTile tile = candidates(*w, h100()).front();
    EXPECT_EQ(block_count(*w, tile), row.blocks) << where;
    EXPECT_EQ(w->tiles(), row.tiles) << where;
    EXPECT_EQ(group_count(*w, tile, h100()), row.groups) << where;
    EXPECT_GE(tile.slots, 3) << where;
    EXPECT_LE(shared_bytes(*w, tile), h100().shared_memory_bytes) << where;
  }
}

// Equal problems that run at once have the processors between them, and the same kernel.
TEST(WgradWgmma, MembersShareTheProcessors) {
  struct Row {
    Shapes shapes;
    int members;
    int64_t blocks;
  };
  for (const Row& row : {Row{{32, 64, 64, 64, 64}, 5, 26}, Row{{32, 64, 64, 64, 64}, 2, 66},
                         Row{{32, 16, 16, 192, 192}, 6, 22}, Row{{32, 16, 16, 192, 576, 1, 0}, 5, 24},
                         Row{{32, 64, 64, 192, 192}, 4, 33}, Row{{32, 64, 64, 64, 64}, 200, 2}}) {
    const Graph body = wgrad(row.shapes);
    Placed placed = place(body, {}, h100());
    const Recorder alone = emitted(placed);
    placed.spec.members = row.members;
    const Recorder shared = emitted(placed);
    const std::string where = fmt::format("{} of {}", row.members, placed.spec.name);
    EXPECT_EQ(shared.drafts[0].grid.x, row.blocks) << where;
    EXPECT_LE(shared.workspace_bytes, alone.workspace_bytes) << where;
    ASSERT_EQ(shared.drafts.size(), alone.drafts.size()) << where;
    for (size_t i = 0; i < alone.drafts.size(); ++i) EXPECT_EQ(shared.drafts[i].source, alone.drafts[i].source);
  }
}

// Of whole sums that run at once there are enough for blocks that have more of each, and so read less.
TEST(WgradWgmma, MembersWithWholeSumsReadLess) {
  for (const int64_t size : {8, 4}) {
    const Graph body = wgrad({32, size, size, 256, 256});
    Placed placed = place(body, {}, h100());
    for (const auto& [members, blocks] : {std::pair(1, 48), {2, 48}, {3, 24}, {8, 16}}) {
      placed.spec.members = members;
      EXPECT_EQ(emitted(placed).drafts.at(0).grid.x, blocks) << members << " of " << size;
    }
  }
}

TEST(WgradWgmma, LeavesTheRestToOthers) {
  const auto accepts = [](const Shapes& shapes, const char* device = "h100", const Places& places = {}) {
    const Graph body = wgrad(shapes);
    return accepts_wgrad_wgmma(place(body, places, *ir::find_device_spec(device)).spec);
  };
  const Shapes shapes{2, 8, 8, 64, 64};
  EXPECT_TRUE(accepts(shapes));
  EXPECT_TRUE(accepts({2, 8, 8, 32, 64}));
  for (const char* device : {"a100", "l4", "b200", "rtx5090"}) EXPECT_FALSE(accepts(shapes, device)) << device;
  EXPECT_TRUE(accepts({2, 4, 4, 64, 64}));
  EXPECT_FALSE(accepts({2, 8, 8, 3, 64}));
  EXPECT_FALSE(accepts({2, 8, 8, 32, 32}));  // Three quarters of the products would be of channels that are not there.
  EXPECT_FALSE(accepts({2, 8, 8, 64, 64, 1, 1}));
  EXPECT_FALSE(accepts({2, 8, 8, 64, 64, 5, 2}));
  EXPECT_TRUE(accepts({2, 8, 8, 128, 128, 3, 1, 2}));
  EXPECT_FALSE(accepts({2, 8, 8, 128, 64, 3, 1, 2}));  // A small result.
  EXPECT_FALSE(accepts({2, 8, 8, 128, 128, 3, 1, 3}));
  EXPECT_FALSE(accepts({2, 8, 8, 128, 128, 1, 0, 2}));
  EXPECT_FALSE(accepts({2, 8, 8, 128, 128, 3, 1, 2, DType::f32}, "h100", {.tf32 = true}));
  EXPECT_FALSE(accepts({2, 8, 8, 64, 64, 3, 1, 1, DType::f32}));
  EXPECT_TRUE(accepts({2, 8, 8, 64, 64, 3, 1, 1, DType::f32}, "h100", {.tf32 = true}));
  EXPECT_FALSE(accepts({2, 8, 8, 64, 64, 1, 0, 1, DType::f32}));
  EXPECT_TRUE(accepts({2, 8, 8, 64, 64, 1, 0, 1, DType::f32}, "h100", {.tf32 = true}));
  EXPECT_FALSE(accepts({2, 8, 8, 64, 64, 3, 1, 1, DType::f16}));
  EXPECT_FALSE(accepts(shapes, "h100", {.alignment = 8}));
}

TEST(WgradWgmma, IsChosenOnHopperAlone) {
  Graph graph("graph");
  Builder b(graph);
  const Value x = b.input("x", {DType::bf16, {2, 8, 8, 64}}), dy = b.input("dy", {DType::bf16, {2, 8, 8, 64}});
  graph.set_output("dw", b.conv_wgrad(x, dy, {1, 1, 3, 3}));
  for (const auto& [device, expected] : {std::pair("h100", true), {"h200", true}, {"a100", false}, {"b200", false}}) {
    const CudaPlan plan = lower_cuda(graph, passes::plan_memory(graph), *ir::find_device_spec(device));
    ASSERT_EQ(plan.calls.size(), expected ? 1 : 2) << device;
    EXPECT_EQ(!plan.calls[0].tensor_maps.empty(), expected) << device;
  }
}

}  // namespace
}  // namespace difuse::codegen::cuda
