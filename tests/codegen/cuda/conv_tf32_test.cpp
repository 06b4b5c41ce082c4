// Hopper's convolutions of floats that are rounded to tf32: run on the CPU they give what the reference gives, they
// compile without spills, no tile and no batch changes a bit, and they are chosen where their operands are rounded.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <span>

#include "codegen/cuda/emit/conv_wgmma/problem.h"
#include "codegen/cuda/emit/conv_wgmma/source.h"
#include "codegen/cuda/emit/conv_wgmma/tiles.h"
#include "codegen/cuda/lower_cuda.h"
#include "codegen/jit/nvrtc.h"
#include "passes/memory_plan.h"
#include "tests/codegen/cuda/conv_body.h"

namespace difuse::codegen::cuda {
namespace {

const Places kRounded{.tf32 = true};

Graph floats(Shapes s, After after = After::nothing, int64_t first = 0) {
  s.dtype = DType::f32;
  return conv(s, after, Before::nothing, first);
}

std::vector<ConvCase> cases() {
  return {
      // Channels of whole chunks and of parts, of one part of the result and of two; images of one tile, several to a
      // tile, higher and wider than a tile.
      {"whole_tiles", floats({2, 32, 8, 64, 64}), kRounded},
      {"one_chunk", floats({2, 16, 8, 32, 64}, After::bias), kRounded},
      {"few_channels", floats({1, 28, 12, 20, 4}, After::bias), kRounded},
      {"odd_channels", floats({3, 14, 9, 36, 100}, After::all), kRounded},
      {"small_images", floats({5, 7, 7, 100, 36}, After::all), kRounded},
      {"tiny_images", floats({3, 3, 5, 12, 96}, After::time), kRounded},
      {"large_image", floats({1, 48, 80, 20, 36}, After::residual), kRounded},
      {"no_border", floats({2, 12, 11, 40, 64, 3, 0}, After::bias), kRounded},
      {"wide_border", floats({1, 9, 6, 40, 64, 3, 2}, After::time), kRounded},
      {"ring", floats({2, 8, 16, 256, 64}, After::all), kRounded},
      {"several_output_tiles", floats({2, 16, 8, 64, 136}, After::all), kRounded},
      {"pointwise", floats({3, 5, 7, 36, 136, 1, 0}, After::all), kRounded},
      {"pointwise_ring", floats({2, 10, 14, 800, 40, 1, 0}, After::residual), kRounded},
      {"one_pixel", floats({1, 1, 1, 4, 4, 1, 0}, After::bias), kRounded},
      {"concat", floats({2, 9, 12, 100, 64}, After::residual, 64), kRounded},
      {"residual_in_place", floats({2, 9, 8, 64, 64}, After::residual), {.tf32 = true, .in_place = {{0, 2}}}},
      {"aligned_16", floats({1, 8, 8, 12, 24}, After::residual), {.alignment = 16, .tf32 = true}},
  };
}

class ConvTf32Case : public ::testing::TestWithParam<ConvCase> {};

TEST_P(ConvTf32Case, AgreesWithTheReference) { expect_agrees_with_the_reference(GetParam()); }

TEST_P(ConvTf32Case, CompilesWithoutSpills) { expect_compiles_without_spills(GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, ConvTf32Case, ::testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

TEST(ConvTf32, AnImageHasTheSameBitsInEveryBatchFromOneSource) {
  expect_same_bits_in_every_batch_from_one_source(
      [](int64_t n) {
        return floats({n, 7, 9, 36, 64}, After::all);
      },
      kRounded);
}

/// Bodies whose candidates are of every kind: taps resident or not, halos of one chunk or several, several images.
std::vector<Graph> tiled() {
  return {floats({2, 18, 9, 32, 64}, After::residual), floats({2, 16, 16, 68, 72}, After::bias),
          floats({5, 7, 7, 36, 64}, After::time), floats({2, 9, 20, 96, 72, 1, 0}, After::all)};
}

TEST(ConvTf32Tiles, NoneChangesABit) {
  std::set<std::string> seen;
  for (const Graph& body : tiled()) {
    Placed placed = place(body, kRounded, h100());
    const ir::TensorMap inputs = random_inputs(body, true);
    const ir::Tensor first = run(body, inputs, kRounded).at("0");
    const TileChoice choice = conv_wgmma_choices(placed.spec).at(0);
    std::set<std::string> teams;  // Each number of consumers, with taps resident or not, once for each body.
    for (size_t i = 0; i < choice.tiles.size(); ++i) {
      const HaloTile tile = candidates(*halo_conv(placed.spec), h100()).at(i);
      const bool resident = is_resident(*halo_conv(placed.spec), tile);
      if (!teams.insert(std::to_string(tile.consumers) + (resident ? "r" : "s")).second) continue;
      placed.spec.tiles = {i};
      EXPECT_EQ(run_drafts(placed, emitted(placed), inputs, "sm_90a").at("0").data, first.data) << choice.tiles[i];
      seen.insert(choice.tiles[i]);
    }
  }
  EXPECT_GT(seen.size(), 9u);
}

TEST(SlowConvTf32Tiles, AllCompileWithoutSpills) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  std::vector<Graph> bodies = tiled();
  bodies.push_back(floats({2, 32, 32, 448, 64}, After::all));
  bodies.push_back(floats({2, 8, 8, 256, 64}, After::all));
  bodies.push_back(floats({2, 64, 64, 64, 64}, After::residual));
  for (const Graph& body : bodies) {
    Placed placed = place(body, kRounded, h100());
    const TileChoice choice = conv_wgmma_choices(placed.spec).at(0);
    for (size_t i = 0; i < choice.tiles.size(); ++i) {
      placed.spec.tiles = {i};
      EXPECT_NO_THROW(nvrtc->compile(source_of(emitted(placed).drafts.front(), "sm_90a"))) << choice.tiles[i];
    }
  }
}

// One block computes all tiles, with the fewest slots that its kind may have: what the ring holds is given back in
// time, both parts of the operand and of the result too, and is not mistaken for that of the round before.
TEST(ConvTf32, ABlockGoesOnThroughATightRing) {
  struct Row {
    Shapes shapes;
    After after;
    HaloTile tile;
  };
  constexpr Row kRows[] = {
      {{3, 40, 20, 32, 64}, After::residual, {16, 1, 3, 9, 1, 2}},  // Taps resident.
      {{3, 40, 20, 32, 64}, After::bias, {16, 1, 3, 9, 1, 2}},
      {{3, 18, 20, 64, 64, 1, 0}, After::residual, {8, 1, 4, 2, 1, 3}},  // By three consumers, of two chunks.
      {{3, 18, 20, 64, 64, 1, 0}, After::bias, {8, 1, 4, 2, 1, 3}},
      {{3, 18, 20, 32, 136}, After::residual, {8, 1, 4, 4, 1, 2}},  // A ring, of one chunk.
      {{3, 18, 20, 32, 136}, After::bias, {8, 1, 4, 4, 1, 2}},
      {{5, 7, 7, 68, 72}, After::residual, {8, 2, 2, 3, 1, 1}},  // Of several.
      {{5, 7, 7, 68, 72}, After::bias, {8, 2, 2, 3, 1, 1}},
  };
  for (const Row& row : kRows) {
    const Graph body = floats(row.shapes, row.after);
    const Placed placed = place(body, kRounded, h100());
    Recorder recorder;
    recorder.launch(halo_conv_kernel(placed.spec, *halo_conv(placed.spec), row.tile));
    recorder.drafts.front().grid.x = 1;
    const ir::TensorMap inputs = random_inputs(body, true);
    expect_reference(body, inputs, run_drafts(placed, recorder, inputs, "sm_90a"), true);
  }
}

TEST(ConvTf32Maps, SayWhereTensorsLie) {
  const Graph body = floats({3, 64, 32, 64, 192}, After::residual);
  const Placed placed = place(body, kRounded, h100());
  const KernelSpec& spec = placed.spec;
  const KernelDraft draft = halo_conv_kernel(spec, *halo_conv(spec), {16, 1, 4, 9, 1});
  const std::vector<TensorMapSpec>& maps = draft.tensor_maps;
  ASSERT_EQ(maps.size(), 4);
  EXPECT_TRUE(maps[0] == (TensorMapSpec{spec.operands[0],
                                        DType::f32,
                                        {64, 32, 64, 3},
                                        {256, 32 * 256, 64 * 32 * 256},
                                        {32, 10, 18, 1},
                                        {1, 1, 1, 1}}));
  EXPECT_TRUE(maps[1] ==
              (TensorMapSpec{spec.operands[1], DType::f32, {64, 9, 192}, {256, 9 * 256}, {32, 1, 64}, {1, 1, 1}}));
  TensorMapSpec result{spec.results[0], DType::f32,  {192, 32, 64, 3}, {768, 32 * 768, 64 * 32 * 768},
                       {32, 8, 16, 1},  {1, 1, 1, 1}};
  EXPECT_TRUE(maps[3] == result);
  result.start = spec.operands[2];
  EXPECT_TRUE(maps[2] == result);
}

TEST(ConvTf32, LeavesTheRestToOthers) {
  const auto accepts = [](const Graph& body, const Places& places = kRounded, const char* device = "h100") {
    return accepts_conv_wgmma(place(body, places, *ir::find_device_spec(device)).spec);
  };
  const Shapes shapes{2, 8, 8, 64, 64};
  EXPECT_TRUE(accepts(floats(shapes)));
  EXPECT_FALSE(accepts(floats(shapes), {}));  // The engines would cut bits off.
  EXPECT_FALSE(accepts(floats(shapes), {.alignment = 8, .tf32 = true}));
  for (const char* device : {"a100", "l4", "b200"}) EXPECT_FALSE(accepts(floats(shapes), kRounded, device)) << device;
  EXPECT_FALSE(accepts(floats({2, 8, 8, 3, 64})));
  EXPECT_FALSE(accepts(floats({2, 8, 8, 64, 6})));
  EXPECT_FALSE(accepts(floats({2, 8, 8, 64, 64, 3, 1, true})));  // The filter's rows are no k.
  const auto changed = [&](DType result, bool rounds) {
    Graph body("body");
    Builder b(body);
    Value x = b.input("0", {DType::f32, {2, 8, 8, 64}});
    if (rounds) x = b.round_tf32(x);
    const Value w = b.input("1", {DType::f32, {64, 3, 3, 64}});
    body.set_output("0", b.cast(b.conv_fprop(x, w, 1, 1), result));
    return accepts(body);
  };
  EXPECT_TRUE(changed(DType::f32, false));
  EXPECT_FALSE(changed(DType::bf16, false));
  EXPECT_FALSE(changed(DType::f32, true));  // Rounded on its way in: a prologue, which the engines have in bf16 alone.
}

// Rounded values stay so where they are moved, inside a fusion too: a decoder's image is two, one behind the other.
TEST(ConvTf32, IsChosenWhereWhatItReadsWasRounded) {
  const auto uses_engines = [](bool rounds_both) {
    Graph graph("graph"), moved("body");
    Builder b(graph), inside(moved);
    const Type half{DType::f32, {2, 8, 8, 32}};
    moved.set_output("0", inside.concat({inside.input("0", half), inside.input("1", half)}, 3));
    const Value x = b.round_tf32(b.input("x", half)), y = b.input("y", half);
    const Value both = graph.add(ir::Op::fusion, {x, rounds_both ? b.round_tf32(y) : y},
                                 ir::FusionAttrs{ir::Hero::pointwise, std::make_shared<const Graph>(moved)});
    const Value w = b.round_tf32(b.input("w", {DType::f32, {64, 3, 3, 64}}));
    graph.set_output("z", b.conv_fprop(both, w, 1, 1));
    const CudaPlan plan = lower_cuda(graph, passes::plan_memory(graph), h100());
    return std::ranges::any_of(plan.calls, [](const KernelCall& call) { return !call.tensor_maps.empty(); });
  };
  EXPECT_TRUE(uses_engines(true));
  EXPECT_FALSE(uses_engines(false));
}

}  // namespace
}  // namespace difuse::codegen::cuda
