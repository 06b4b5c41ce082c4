// Hopper's convolutions: run on the CPU they give what the reference gives, they compile without spills, and they are
// chosen where they must be.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>

#include "codegen/cuda/emit/conv_wgmma/finish.h"
#include "codegen/cuda/emit/conv_wgmma/problem.h"
#include "codegen/cuda/emit/conv_wgmma/source.h"
#include "codegen/cuda/emit/conv_wgmma/tiles.h"
#include "codegen/cuda/lower_cuda.h"
#include "codegen/jit/nvrtc.h"
#include "ir/builder.h"
#include "ir/op.h"
#include "passes/memory_plan.h"
#include "tests/codegen/cuda/conv_body.h"

namespace difuse::codegen::cuda {
namespace {

/// The sum over pixels is of what the products give, not of what is stored of them.
Graph conv_and_its_sum() {
  Graph graph("body");
  Builder b(graph);
  const Value x = b.input("0", {DType::bf16, {2, 16, 16, 64}}), w = b.input("1", {DType::bf16, {64, 3, 3, 64}});
  const Value y = b.conv_fprop(x, w, 1, 1);
  graph.set_output("0", b.cast(y, DType::bf16));
  graph.set_output("1", b.reduce_sum(y, {1, 2}));
  return graph;
}

Graph strided(Shapes shapes, After after) {
  shapes.stride = 2;
  return conv(shapes, after);
}

std::vector<ConvCase> cases() {
  return {
      // Images of one tile, several to a tile, higher and wider than a tile; parts of tiles at every edge.
      {"whole_tiles", conv({2, 32, 8, 64, 64})},
      {"few_channels", conv({1, 28, 12, 32, 8}, After::bias)},
      {"odd_channels", conv({3, 14, 9, 72, 40}, After::all)},
      {"small_images", conv({5, 7, 7, 136, 72}, After::all)},
      {"tiny_images", conv({3, 3, 5, 16, 72}, After::time)},
      // Images side by side in a tile: of 4 pixels' width and less, of 2 and less, higher than a tile.
      {"images_abreast", conv({8, 4, 4, 64, 64}, After::residual)},
      {"images_abreast_odd", conv({3, 4, 4, 96, 40}, After::all)},
      {"images_abreast_ring", conv({21, 4, 4, 264, 72}, After::all)},
      {"images_abreast_narrow", conv({7, 5, 3, 40, 136}, After::time)},
      {"images_abreast_high", conv({3, 45, 4, 40, 64}, After::residual)},
      {"images_abreast_wide_border", conv({5, 2, 2, 40, 64, 3, 2}, After::bias)},
      {"images_abreast_no_border", conv({5, 6, 5, 40, 64, 3, 0}, After::all)},
      {"images_abreast_turned", conv({9, 4, 4, 136, 72, 3, 1, true}, After::residual)},
      {"images_abreast_concat", conv({6, 4, 4, 136, 64}, After::residual, Before::nothing, 64)},
      {"four_images_abreast", conv({9, 2, 2, 72, 64}, After::all)},
      {"four_images_abreast_of_one_pixel", conv({5, 1, 1, 72, 64}, After::time)},
      {"high_image", conv({1, 45, 10, 64, 64}, After::residual)},
      {"no_border", conv({2, 12, 11, 40, 64, 3, 0}, After::bias)},
      {"wide_border", conv({1, 9, 6, 40, 64, 3, 2}, After::time)},
      {"ring", conv({2, 8, 16, 256, 64}, After::all)},
      {"several_output_tiles", conv({2, 16, 8, 64, 136}, After::all)},
      {"pointwise", conv({3, 5, 7, 72, 136, 1, 0}, After::all)},
      {"pointwise_ring", conv({2, 10, 14, 1600, 40, 1, 0}, After::residual)},
      {"one_pixel", conv({1, 1, 1, 8, 8, 1, 0}, After::bias)},
      // Every second pixel, of even and odd extents.
      {"strided", strided({2, 16, 16, 64, 64}, After::bias)},
      {"strided_odd", strided({3, 17, 15, 72, 136}, After::all)},
      {"strided_no_border", strided({2, 20, 13, 40, 64, 3, 0}, After::time)},
      {"strided_wide_border", strided({1, 31, 11, 40, 64, 3, 2}, After::residual)},
      {"strided_ring", strided({2, 32, 16, 264, 64}, After::all)},
      {"strided_abreast", strided({9, 8, 8, 72, 64}, After::all)},
      {"strided_abreast_odd", strided({7, 11, 7, 40, 136}, After::residual)},
      {"strided_abreast_no_border", strided({5, 9, 8, 72, 40, 3, 0}, After::time)},
      {"strided_four_abreast", strided({19, 4, 3, 64, 72}, After::bias)},
      {"strided_concat", conv({2, 16, 16, 136, 64, 3, 1, false, DType::bf16, 2}, After::bias, Before::nothing, 64)},
      // The filter where it lies.
      {"turned", conv({2, 18, 9, 72, 40, 3, 1, true}, After::all)},
      {"turned_ring", conv({2, 8, 16, 328, 136, 3, 1, true}, After::residual)},
      {"turned_no_border", conv({2, 7, 9, 40, 64, 3, 0, true}, After::bias)},
      {"turned_pointwise", conv({3, 5, 7, 136, 72, 1, 0, true}, After::bias)},
      {"sum_before_rounding", conv_and_its_sum()},
      {"parts_of_rows", conv({3, 14, 9, 72, 40}, After::parts)},
      // A mask beside the residual, in bytes.
      {"masked", conv({2, 18, 9, 72, 48}, After::masked)},
      {"masked_small_images", conv({5, 7, 7, 136, 80}, After::masked)},
      {"masked_turned_ring", conv({2, 8, 16, 328, 144, 3, 1, true}, After::masked)},
      {"masked_pointwise", conv({3, 5, 7, 72, 144, 1, 0}, After::masked)},
      {"masked_in_place", conv({2, 9, 8, 64, 64}, After::masked), {.in_place = {{0, 2}}}},
      // What is computed of the image first, in images of one tile, several to a tile, and parts of tiles; the border
      // stays zero.
      {"prologue", conv({2, 18, 12, 64, 64}, After::bias, Before::normalise)},
      {"prologue_odd_channels", conv({3, 14, 9, 72, 40}, After::all, Before::normalise)},
      {"prologue_small_images", conv({5, 7, 7, 136, 72}, After::time, Before::normalise)},
      {"prologue_border", conv({1, 9, 6, 40, 64, 3, 2}, After::nothing, Before::scale)},
      {"prologue_no_border", conv({2, 12, 11, 40, 64, 3, 0}, After::residual, Before::scale)},
      {"prologue_ring", conv({2, 8, 16, 256, 64}, After::residual, Before::normalise)},
      {"prologue_pointwise", conv({3, 5, 7, 72, 136, 1, 0}, After::all, Before::normalise)},
      {"prologue_turned", conv({2, 18, 9, 72, 40, 3, 1, true}, After::residual, Before::normalise)},
      // Of few strips, with their statistics made by each block.
      {"prologue_finish", conv({5, 7, 7, 136, 72}, After::time, Before::finish)},
      {"prologue_finish_resident", conv({3, 14, 9, 72, 72}, After::residual, Before::finish), {.unwanted = {1}}},
      {"prologue_finish_many_strips", conv({2, 64, 64, 64, 64, 1, 0}, After::nothing, Before::finish)},
      {"prologue_finish_concat", conv({2, 32, 32, 192, 64, 1, 0}, After::bias, Before::finish, 128)},
      {"prologue_finish_pointwise", conv({3, 16, 16, 72, 136, 1, 0}, After::bias, Before::finish)},
      // Two images, one behind the other.
      {"concat", conv({2, 9, 12, 136, 64}, After::residual, Before::nothing, 64)},
      {"concat_pointwise", conv({2, 9, 12, 192, 72, 1, 0}, After::bias, Before::nothing, 128)},
      {"concat_prologue", conv({3, 7, 9, 136, 64}, After::all, Before::normalise, 128)},
      {"residual_in_place", conv({2, 9, 8, 64, 64}, After::residual), {.in_place = {{0, 2}}}},
      {"aligned_16", conv({1, 8, 8, 24, 24}, After::residual), {.alignment = 16}},
  };
}

class ConvWgmmaCase : public ::testing::TestWithParam<ConvCase> {};

TEST_P(ConvWgmmaCase, AgreesWithTheReference) { expect_agrees_with_the_reference(GetParam()); }

TEST_P(ConvWgmmaCase, CompilesWithoutSpills) { expect_compiles_without_spills(GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, ConvWgmmaCase, ::testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

TEST(ConvWgmma, AnImageHasTheSameBitsInEveryBatchFromOneSource) {
  expect_same_bits_in_every_batch_from_one_source([](int64_t n) { return conv({n, 7, 9, 72, 64}, After::all); });
  expect_same_bits_in_every_batch_from_one_source([](int64_t n) { return conv({n, 4, 4, 72, 64}, After::all); });
}

/// Bodies whose candidates are of every kind: taps resident or not, halos of one chunk or several, of a consumer or
/// shared by two or three, several images.
std::vector<Graph> tiled() {
  return {conv({2, 18, 9, 64, 64}, After::residual),
          conv({2, 16, 16, 136, 72}, After::bias),
          conv({5, 7, 7, 64, 136}, After::time),
          conv({2, 9, 20, 192, 136, 1, 0}, After::all),
          conv({3, 7, 7, 136, 72, 3, 1, true}, After::residual),
          conv({3, 18, 9, 64, 144}, After::masked)};
}
/// Likewise of images abreast, beside which three consumers have no room for a halo each.
std::vector<Graph> tiled_abreast() {
  return {conv({5, 4, 4, 72, 192}, After::all), conv({9, 4, 4, 64, 128}, After::residual),
          conv({9, 4, 4, 64, 144}, After::masked), conv({19, 2, 2, 64, 64, 3, 1, true}, After::residual)};
}
std::vector<Graph> tiled_strided() {
  return {strided({3, 30, 15, 72, 128}, After::bias), strided({9, 8, 8, 72, 128}, After::residual)};
}
/// Likewise with a prologue, which leaves room for fewer consumers.
std::vector<Graph> tiled_with_prologue() {
  return {conv({2, 18, 9, 64, 64}, After::residual, Before::normalise),
          conv({2, 16, 16, 136, 72}, After::bias, Before::scale),
          conv({5, 7, 7, 64, 64}, After::time, Before::normalise),
          conv({5, 7, 7, 72, 72}, After::nothing, Before::finish),
          conv({2, 9, 20, 192, 136, 1, 0}, After::all, Before::normalise)};
}

/// Runs the body with the candidates that `takes` of its choice, and expects what the first one gives.
void expect_same_bits(const Graph& body, std::set<std::string>& seen,
                      const std::function<bool(const std::string& tile)>& takes) {
  Placed placed = place(body, {}, h100());
  const ir::TensorMap inputs = random_inputs(body, false);
  const ir::Tensor first = run(body, inputs).at("0");
  const TileChoice choice = conv_wgmma_choices(placed.spec).at(0);
  for (size_t i = 0; i < choice.tiles.size(); ++i) {
    if (!takes(choice.tiles[i])) continue;
    placed.spec.tiles = {i};
    EXPECT_EQ(run_drafts(placed, emitted(placed), inputs, "sm_90a").at("0").data, first.data) << choice.tiles[i];
    seen.insert(choice.tiles[i]);
  }
}

/// How many consumers, and whether they share halos.
std::string team(const std::string& tile) {
  return tile[tile.find(" consumers") - 1] + tile.substr(tile.find(" blocks"));
}

TEST(ConvWgmmaTiles, NoneChangesABit) {
  std::set<std::string> seen;
  for (const Graph& body : tiled()) {
    std::set<std::string> consumers;  // Each number of them once for each body, with a halo each and with one for all.
    expect_same_bits(body, seen, [&](const std::string& tile) { return consumers.insert(team(tile)).second; });
    const int64_t outputs = body.type(body.outputs()[0].value).shape[3];
    EXPECT_EQ(consumers.size(), outputs > 64 ? 4u : 3u);
  }
  EXPECT_GT(seen.size(), 12u);
}

/// Tiles of each kind of consumers, with each number of pixels and images, once for each body.
std::set<std::string> expect_same_bits_of_teams(const std::vector<Graph>& bodies) {
  std::set<std::string> seen;
  for (const Graph& body : bodies) {
    std::set<std::string> teams;
    expect_same_bits(body, seen, [&](const std::string& tile) {
      return teams.insert(tile.substr(0, tile.find(' ')) + team(tile)).second;
    });
  }
  return seen;
}

TEST(ConvWgmmaTiles, NoneChangesABitOfAStride) { EXPECT_GT(expect_same_bits_of_teams(tiled_strided()).size(), 5u); }

TEST(ConvWgmmaTiles, NoneChangesABitOfImagesAbreast) {
  const std::set<std::string> seen = expect_same_bits_of_teams(tiled_abreast());
  EXPECT_GT(seen.size(), 8u);
  for (const std::string& tile : seen) EXPECT_TRUE(tile.starts_with("4x4x") || tile.starts_with("2x2x")) << tile;
}

TEST(ConvWgmmaTiles, NoneChangesABitOfAPrologue) {
  std::set<std::string> seen;
  for (const Graph& body : tiled_with_prologue()) {
    std::set<std::string> teams;  // Each number of consumers and of blocks once for each body.
    expect_same_bits(body, seen, [&](const std::string& tile) {
      return teams.insert(team(tile) + tile.substr(tile.find(" blocks") - 1)).second;
    });
  }
  EXPECT_GT(seen.size(), 10u);
}

TEST(SlowConvWgmmaTiles, NoneOfAllChangesABit) {
  std::set<std::string> seen;
  for (const Graph& body : tiled()) expect_same_bits(body, seen, [](const std::string&) { return true; });
  for (const Graph& body : tiled_abreast()) expect_same_bits(body, seen, [](const std::string&) { return true; });
  for (const Graph& body : tiled_strided()) expect_same_bits(body, seen, [](const std::string&) { return true; });
  for (const Graph& body : tiled_with_prologue()) expect_same_bits(body, seen, [](const std::string&) { return true; });
  EXPECT_GT(seen.size(), 60);
}

// The gradient of the image from the filter as it lies has the bits of the convolution with the turned one, on the
// engines and by the products of all architectures.
TEST(ConvWgmma, TurningTheFilterChangesNoBit) {
  const Shapes turned{2, 9, 7, 136, 72, 3, 1, true};
  Shapes plain = turned;
  plain.is_turned = false;
  const Graph lying = conv(turned, After::residual), repacked = conv(plain, After::residual);
  ir::TensorMap inputs = random_inputs(lying, false), same = inputs;
  Graph repack("repack");
  Builder b(repack);
  repack.set_output("1", b.repack(b.input("1", inputs.at("1").type), ir::WeightLayout::flipped));
  same["1"] = ir::run_reference(repack, {{"1", inputs.at("1")}}, {}).outputs.at("1");
  EXPECT_EQ(run(lying, inputs).at("0").data, run(repacked, same).at("0").data);
  const auto run_portable = [](const Graph& body, const ir::TensorMap& from) {
    const Placed placed = place(body, {}, h100());
    Recorder recorder;
    emit_contraction(placed.spec, recorder);
    return run_drafts(placed, recorder, from, "sm_90a").at("0").data;
  };
  EXPECT_EQ(run_portable(lying, inputs), run_portable(repacked, same));
}

/// The best `most` estimates.
void expect_compile(const Graph& body, size_t most) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  Placed placed = place(body, {}, h100());
  const TileChoice choice = conv_wgmma_choices(placed.spec).at(0);
  for (size_t i = 0; i < std::min(most, choice.at_batch.size()); ++i) {
    placed.spec.tiles = {choice.at_batch[i]};
    const CudaSource source = source_of(emitted(placed).drafts.front(), "sm_90a");
    EXPECT_NO_THROW(nvrtc->compile(source)) << choice.tiles[choice.at_batch[i]];
  }
}

TEST(ConvWgmmaTiles, ThoseOfASmallImageCompileWithoutSpills) {
  expect_compile(conv({32, 8, 8, 128, 64, 3, 1, true}, After::residual), 6);
  expect_compile(conv({32, 4, 4, 256, 256}, After::residual), 6);
}

// Those of the best estimates share halos, beside transformers too.
TEST(ConvWgmmaTiles, ThoseOfManyOutputsCompileWithoutSpills) {
  expect_compile(conv({32, 16, 16, 192, 576, 1, 0}, After::bias), 2);
  expect_compile(conv({32, 16, 16, 192, 576, 1, 0}, After::bias, Before::normalise), 2);
}

TEST(SlowConvWgmmaTiles, AllCompileWithoutSpills) {
  std::vector<Graph> bodies = tiled();
  for (const Graph& body : tiled_abreast()) bodies.push_back(body);
  for (const Graph& body : tiled_strided()) bodies.push_back(body);
  bodies.push_back(conv({2, 32, 32, 448, 64}, After::all));
  bodies.push_back(conv({2, 8, 8, 256, 64}, After::all));
  bodies.push_back(conv({2, 64, 64, 64, 64}, After::residual));
  bodies.push_back(conv({2, 32, 32, 128, 128, 3, 1, true}, After::masked));
  bodies.push_back(conv({2, 16, 16, 192, 192, 1, 0, true}, After::residual));
  for (const Graph& body : bodies) expect_compile(body, 1000);
}

/// Beside transformers registers are few: of what is estimated to be slow some spill, and give way to others.
TEST(SlowConvWgmmaTiles, TheBestWithAPrologueCompileWithoutSpills) {
  std::vector<Graph> bodies = tiled_with_prologue();
  for (const auto& [h, c] : {std::pair(64, 64), {32, 128}, {8, 256}}) {
    bodies.push_back(conv({2, h, h, c, c}, After::all, Before::normalise));
  }
  bodies.push_back(conv({2, 16, 16, 192, 576, 1, 0}, After::bias, Before::normalise));
  for (const Graph& body : bodies) expect_compile(body, 4);
}

// One block computes all tiles, with the fewest slots that its kind may have: what the ring holds is given back in
// time, the operand too, and is not mistaken for that of the round before.
TEST(ConvWgmma, ABlockGoesOnThroughATightRing) {
  struct Row {
    Shapes shapes;
    After after;
    HaloTile tile;
    Before before = Before::nothing;
  };
  constexpr Row kRows[] = {
      {{3, 40, 20, 64, 64}, After::residual, {16, 1, 3, 9, 1, 2}},  // Taps resident.
      {{3, 40, 20, 64, 64}, After::bias, {16, 1, 3, 9, 1, 2}},
      {{3, 18, 20, 128, 64, 1, 0}, After::residual, {8, 1, 4, 2, 1, 3}},  // By three consumers, of two chunks.
      {{9, 16, 16, 384, 64, 1, 0},
       After::residual,
       {16, 1, 6, 6, 1, 2}},                                        // An operand whose slot another one has next.
      {{3, 18, 20, 64, 136}, After::residual, {8, 1, 2, 4, 1, 2}},  // A ring, of one chunk.
      {{5, 7, 7, 136, 72}, After::residual, {8, 2, 2, 3, 1, 1}},    // Of several.
      // A mask, whose tile makes an operand larger than a halo, and with a slot of its consumer's own.
      {{3, 40, 20, 64, 64}, After::masked, {16, 1, 3, 9, 1, 2}},
      {{5, 7, 7, 136, 80}, After::masked, {8, 2, 2, 3, 1, 1}},
      {{3, 18, 20, 64, 128}, After::masked, {8, 1, 2, 9, 1, 2, true}},
      // Transformers in turns, of sets of tiles with an even and an odd number of copies.
      {{3, 40, 20, 64, 64}, After::residual, {16, 1, 4, 9, 1, 2}, Before::normalise},
      {{5, 7, 7, 136, 72}, After::nothing, {8, 2, 2, 3, 1, 1}, Before::scale},
      {{5, 7, 7, 72, 64}, After::residual, {8, 1, 4, 18, 1, 2}, Before::finish},
      // Two and three consumers of a halo, taps resident or not, and outputs for only some of them.
      {{3, 18, 20, 64, 128}, After::residual, {8, 1, 2, 9, 1, 2, true}},
      {{3, 18, 20, 128, 136, 1, 0}, After::bias, {16, 1, 2, 2, 1, 3, true}},
      {{3, 18, 20, 192, 136, 1, 0}, After::residual, {8, 1, 2, 2, 1, 3, true}},
      {{5, 7, 7, 136, 320}, After::residual, {8, 2, 2, 2, 1, 2, true}},
      {{5, 7, 7, 136, 192, 3, 1, true}, After::bias, {8, 1, 2, 2, 1, 3, true}},
      {{3, 18, 20, 64, 128}, After::residual, {16, 1, 2, 2, 1, 2, true}, Before::normalise},
      {{5, 7, 7, 72, 136}, After::residual, {8, 1, 3, 4, 1, 3, true}, Before::finish},
      // Images abreast: a halo for each consumer or one for two, taps resident or not, an operand.
      {{35, 4, 4, 64, 64}, After::residual, {.rows = 4, .images = 2, .halo_slots = 3, .tap_slots = 9, .abreast = 2}},
      {{35, 4, 4, 136, 64}, After::bias, {.rows = 4, .images = 2, .halo_slots = 4, .tap_slots = 2, .abreast = 2}},
      {{35, 4, 4, 136, 128}, After::residual, {4, 2, 2, 2, 1, 2, true, 2}},
      {{5, 16, 16, 136, 72, 3, 1, false, DType::bf16, 2}, After::residual, {8, 1, 4, 2, 1, 2}},  // Every second pixel.
      // Images of many strips, in whose midst a block may begin; more parts than a thread holds at once.
      {{3, 40, 20, 64, 64}, After::residual, {16, 1, 4, 9, 1, 2}, Before::finish},
      {{3, 18, 20, 64, 128}, After::residual, {16, 1, 2, 2, 1, 2, true}, Before::finish},
  };
  for (const Row& row : kRows) {
    const Graph body = conv(row.shapes, row.after, row.before);
    const Placed placed = place(body, {}, h100());
    const FinishedSpec finished(placed.spec);
    Recorder recorder;
    recorder.launch(halo_conv_kernel(finished.spec(), *finished.conv(), row.tile));
    recorder.drafts.front().grid.x = 1;
    const ir::TensorMap inputs = random_inputs(body, false);
    expect_reference(body, inputs, run_drafts(placed, recorder, inputs, "sm_90a"), false);
  }
}

/// Where a block's tiles lie in a row, some blocks begin inside an image, see several, or have fewer tiles.
TEST(ConvWgmma, BlocksShareImagesWhoseStatisticsTheyMake) {
  for (const int64_t processors : {1, 2, 3, 5}) {
    ir::DeviceSpec device = h100();
    device.processors = processors;
    for (const Graph& body : {conv({3, 40, 20, 64, 64}, After::residual, Before::finish),
                              conv({4, 18, 20, 72, 192, 1, 0}, After::bias, Before::finish)}) {
      const Placed placed = place(body, {}, device);
      const ir::TensorMap inputs = random_inputs(body, false);
      const Recorder recorder = emitted(placed);
      EXPECT_LE(recorder.drafts.front().grid.x, 3 * processors);
      expect_reference(body, inputs, run_drafts(placed, recorder, inputs, "sm_90a"), false);
    }
  }
}

// The fastest of all on an H200, or within 1 % of it.
TEST(ConvWgmmaTiles, AreThoseThatWereMeasuredToBeFast) {
  struct Row {
    Shapes shapes;
    After after;
    const char* best;
    Before before = Before::nothing;
  };
  constexpr Row kRows[] = {
      {{32, 64, 64, 64, 64}, After::nothing, "8x16x1 2 consumers 6 halos 9 taps 1 blocks"},
      {{32, 64, 64, 64, 64}, After::residual, "8x8x1 2 consumers 3 halos 9 taps 2 blocks"},
      {{32, 64, 64, 192, 64}, After::residual, "8x16x1 2 consumers 4 halos 12 taps 1 blocks"},
      {{32, 64, 64, 64, 192}, After::nothing, "8x32x1 2 consumers 3 halos 9 taps 1 blocks"},
      {{32, 32, 32, 128, 128}, After::residual, "8x16x1 2 consumers 3 halos 18 taps 1 blocks"},
      {{32, 32, 32, 320, 128}, After::nothing, "8x16x1 2 consumers 4 halos 12 taps 1 blocks"},
      {{32, 16, 16, 192, 192}, After::nothing, "8x16x1 2 consumers 4 halos 12 taps 1 blocks"},
      {{32, 8, 8, 256, 256}, After::residual, "8x8x1 2 consumers 4 halos 12 taps 1 blocks"},
      {{32, 64, 64, 192, 64, 1, 0}, After::residual, "8x8x1 2 consumers 6 halos 3 taps 2 blocks"},
      {{32, 16, 16, 192, 576, 1, 0}, After::bias, "8x8x1 3 consumers 6 halos 3 taps 1 blocks, shared halos"},
      {{32, 32, 32, 128, 128},
       After::bias,
       "8x16x1 2 consumers 2 halos 9 taps 1 blocks, shared halos",
       Before::normalise},
      {{32, 16, 16, 192, 192},
       After::bias,
       "8x8x1 3 consumers 2 halos 7 taps 1 blocks, shared halos",
       Before::normalise},
      {{32, 16, 16, 192, 576, 1, 0},
       After::bias,
       "8x8x1 3 consumers 3 halos 2 taps 1 blocks, shared halos",
       Before::normalise},
  };
  for (const Row& row : kRows) {
    const Graph body = conv(row.shapes, row.after, row.before);
    const Placed placed = place(body, {}, h100());
    const auto found = halo_conv(placed.spec);
    ASSERT_TRUE(found);
    const std::vector<HaloTile> tiles = candidates(*found, h100());
    for (const HaloTile& tile : tiles) EXPECT_LE(shared_bytes(*found, tile), h100().shared_memory_bytes);
    EXPECT_EQ(to_string(tiles.front()), row.best) << row.shapes.h << "x" << row.shapes.w << " " << row.shapes.c;
  }
}

/// A convolution times so many tensors of its result's shape in bf16 and in bytes.
Graph multiplied(int64_t channels, int residuals, int masks) {
  Graph body("body");
  Builder b(body);
  const Value image = b.input("0", {DType::bf16, {2, 16, 16, 64}});
  Value x = b.conv_fprop(image, b.input("1", {DType::bf16, {channels, 3, 3, 64}}), 1, 1);
  for (int i = 0; i < residuals + masks; ++i) {
    const DType dtype = i < residuals ? DType::bf16 : DType::u8;
    x = b.mul(x, b.cast(b.input(std::to_string(i + 2), {dtype, b.shape(x)}), DType::f32));
  }
  body.set_output("0", b.cast(x, DType::bf16));
  return body;
}

TEST(ConvWgmma, TakesOneMaskBesideAResidualInWholeRunsOfChannels) {
  const auto takes = [](const Graph& body) { return accepts_conv_wgmma(place(body, {}, h100()).spec); };
  EXPECT_TRUE(takes(multiplied(80, 1, 1)));
  EXPECT_FALSE(takes(multiplied(72, 1, 1)));
  EXPECT_FALSE(takes(multiplied(80, 0, 1)));
  EXPECT_FALSE(takes(multiplied(80, 1, 2)));
  EXPECT_FALSE(takes(multiplied(80, 2, 1)));
}

TEST(ConvWgmmaMaps, SayWhichWayAFilterLies) {
  const Graph body = conv({3, 8, 8, 64, 192, 3, 1, true});
  const Placed placed = place(body, {}, h100());
  const KernelDraft draft = halo_conv_kernel(placed.spec, *halo_conv(placed.spec), {16, 1, 3, 9, 1});
  EXPECT_TRUE(
      draft.tensor_maps.at(1) ==
      (TensorMapSpec{placed.spec.operands[1], DType::bf16, {192, 9, 64}, {384, 9 * 384}, {64, 1, 64}, {1, 1, 1}}));
}

TEST(ConvWgmmaMaps, SayWhereTensorsLie) {
  const Graph body = conv({3, 64, 32, 64, 192}, After::residual);
  const Placed placed = place(body, {}, h100());
  const KernelDraft draft = halo_conv_kernel(placed.spec, *halo_conv(placed.spec), {32, 1, 3, 9, 1});
  const std::vector<TensorMapSpec>& maps = draft.tensor_maps;
  ASSERT_EQ(maps.size(), 4);
  const KernelSpec& spec = placed.spec;
  EXPECT_TRUE(maps[0] == (TensorMapSpec{spec.operands[0],
                                        DType::bf16,
                                        {64, 32, 64, 3},
                                        {128, 32 * 128, 64 * 32 * 128},
                                        {64, 10, 34, 1},
                                        {1, 1, 1, 1}}));
  EXPECT_TRUE(maps[1] ==
              (TensorMapSpec{spec.operands[1], DType::bf16, {64, 9, 192}, {128, 9 * 128}, {64, 1, 64}, {1, 1, 1}}));
  const TensorMapSpec result{spec.results[0], DType::bf16, {192, 32, 64, 3}, {384, 32 * 384, 64 * 32 * 384},
                             {64, 8, 32, 1},  {1, 1, 1, 1}};
  EXPECT_TRUE(maps[3] == result);
  TensorMapSpec residual = result;
  residual.start = spec.operands[2];
  EXPECT_TRUE(maps[2] == residual);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(draft.arguments[i], (Argument{Argument::Kind::tensor_map, static_cast<int64_t>(i)}));
  }
}

// Every second column, and all rows.
TEST(ConvWgmmaMaps, SayWhatAStrideSkips) {
  const Graph body = strided({7, 32, 30, 64, 64}, After::nothing);
  const Placed placed = place(body, {}, h100());
  const KernelDraft draft = halo_conv_kernel(placed.spec, *halo_conv(placed.spec), {8, 2, 2, 4, 1, 1});
  const int64_t c = 64 * 2;
  EXPECT_TRUE(
      draft.tensor_maps.at(0) ==
      (TensorMapSpec{
          placed.spec.operands[0], DType::bf16, {64, 30, 32, 7}, {c, 30 * c, 960 * c}, {64, 18, 17, 2}, {1, 2, 1, 1}}));
}

// Row after row of all images in a box, and of the halo no border to the left and right.
TEST(ConvWgmmaMaps, SayWhereImagesAbreastLie) {
  const Graph body = conv({7, 4, 3, 64, 192});
  const Placed placed = place(body, {}, h100());
  const HaloTile tile{.rows = 4, .images = 2, .halo_slots = 4, .tap_slots = 4, .abreast = 2};
  const KernelDraft draft = halo_conv_kernel(placed.spec, *halo_conv(placed.spec), tile);
  const int64_t c = 64 * 2, k = 192 * 2;
  EXPECT_TRUE(
      draft.tensor_maps.at(0) ==
      (TensorMapSpec{
          placed.spec.operands[0], DType::bf16, {64, 3, 7, 4}, {c, 12 * c, 3 * c}, {64, 4, 4, 6}, {1, 1, 1, 1}}));
  EXPECT_TRUE(
      draft.tensor_maps.at(2) ==
      (TensorMapSpec{
          placed.spec.results[0], DType::bf16, {192, 3, 7, 4}, {k, 12 * k, 3 * k}, {64, 4, 4, 4}, {1, 1, 1, 1}}));
}

TEST(ConvWgmma, LeavesTheRestToOthers) {
  const auto accepts = [](const Graph& body, const char* device = "h100", const Places& places = {}) {
    return accepts_conv_wgmma(place(body, places, *ir::find_device_spec(device)).spec);
  };
  const Shapes shapes{2, 8, 8, 64, 64};
  EXPECT_TRUE(accepts(conv(shapes)));
  for (const char* device : {"a100", "l4", "b200", "rtx5090"}) EXPECT_FALSE(accepts(conv(shapes), device)) << device;
  EXPECT_FALSE(accepts(conv({2, 8, 8, 3, 64})));
  EXPECT_FALSE(accepts(conv({2, 8, 8, 64, 6})));
  EXPECT_FALSE(accepts(conv({2, 8, 8, 64, 64, 1, 1})));
  EXPECT_FALSE(accepts(conv({2, 8, 8, 64, 64, 5, 2})));
  EXPECT_FALSE(accepts(conv(shapes), "h100", {.alignment = 8}));
  EXPECT_FALSE(accepts(conv({2, 8, 8, 64, 64, 1, 0}, After::time)));
  const auto changed = [](const std::function<void(Builder&)>& write) {
    Graph body("body");
    Builder b(body);
    write(b);
    return body;
  };
  const Type image{DType::bf16, {2, 8, 8, 64}}, filter{DType::bf16, {64, 3, 3, 64}};
  EXPECT_FALSE(accepts(changed([&](Builder& b) {  // The image is the residual too.
    const Value x = b.input("0", image), y = b.conv_fprop(x, b.input("1", filter), 1, 1);
    b.graph().set_output("0", b.cast(b.add(y, b.cast(x, DType::f32)), DType::bf16));
  })));
  EXPECT_FALSE(accepts(changed([&](Builder& b) {  // Sums that are of no image.
    const Value x = b.exp(b.input("0", {DType::f32, {64, 256}}));
    b.graph().set_output("0", b.sum_all(x)), b.graph().set_output("1", b.neg(x));
  })));
  EXPECT_TRUE(accepts(strided({2, 9, 9, 64, 64}, After::nothing)));
  EXPECT_FALSE(accepts(strided({2, 9, 9, 64, 64, 1, 0}, After::nothing)));
  // A larger stride, an f32 result, two results, two residuals, one that is moved.
  EXPECT_FALSE(accepts(changed([&](Builder& b) {
    b.graph().set_output("0", b.cast(b.conv_fprop(b.input("0", image), b.input("1", filter), 3, 1), DType::bf16));
  })));
  EXPECT_FALSE(accepts(changed(
      [&](Builder& b) { b.graph().set_output("0", b.conv_fprop(b.input("0", image), b.input("1", filter), 1, 1)); })));
  EXPECT_FALSE(accepts(changed([&](Builder& b) {
    const Value x = b.conv_fprop(b.input("0", image), b.input("1", filter), 1, 1);
    b.graph().set_output("0", b.cast(x, DType::bf16));
    b.graph().set_output("1", b.cast(b.silu(x), DType::bf16));
  })));
  EXPECT_FALSE(accepts(changed([&](Builder& b) {
    Value x = b.conv_fprop(b.input("0", image), b.input("1", filter), 1, 1);
    for (const char* name : {"2", "3"}) x = b.add(x, b.cast(b.input(name, image), DType::f32));
    b.graph().set_output("0", b.cast(x, DType::bf16));
  })));
  EXPECT_FALSE(accepts(changed([&](Builder& b) {
    const Value x = b.conv_fprop(b.input("0", image), b.input("1", filter), 1, 1);
    const Value y = b.reverse(b.input("2", image), 2);
    b.graph().set_output("0", b.cast(b.add(x, b.cast(y, DType::f32)), DType::bf16));
  })));
}

// A prologue is elementwise, of one image, which nobody else reads, and of few operands that all its pixels share.
TEST(ConvWgmma, LeavesOtherPrologues) {
  const Type image{DType::bf16, {2, 8, 8, 64}}, filter{DType::bf16, {64, 3, 3, 64}};
  const auto accepts = [&](const std::function<Value(Builder&, Value x)>& before, bool also_stored = false) {
    Graph body("body");
    Builder b(body);
    const Value x = b.input("0", image), w = b.input("1", filter), made = before(b, x);
    body.set_output("0", b.cast(b.conv_fprop(made, w, 1, 1), DType::bf16));
    if (also_stored) body.set_output("1", made);
    return accepts_conv_wgmma(place(body, {}, h100()).spec);
  };
  const auto silu = [](Builder& b, Value x) { return b.cast(b.silu(b.cast(x, DType::f32)), DType::bf16); };
  EXPECT_TRUE(accepts(silu));
  EXPECT_FALSE(accepts(silu, true));
  EXPECT_FALSE(accepts([](Builder& b, Value x) { return b.reverse(x, 2); }));
  // By something else of the image's size, in f32, in bf16, which there may be one of; of a pixel.
  const auto by = [&](const std::function<Value(Builder&)>& factor) {
    return [&, factor](Builder& b, Value x) {
      return b.cast(b.mul(b.cast(x, DType::f32), b.cast(factor(b), DType::f32)), DType::bf16);
    };
  };
  EXPECT_FALSE(accepts(by([&](Builder& b) { return b.input("2", {DType::f32, image.shape}); })));
  EXPECT_TRUE(accepts(by([&](Builder& b) { return b.input("2", image); })));
  EXPECT_FALSE(accepts(by([&](Builder& b) {
    return b.mul(b.cast(b.input("2", image), DType::f32), b.cast(b.input("3", image), DType::f32));
  })));
  EXPECT_FALSE(accepts(by([&](Builder& b) {
    return b.broadcast(b.input("2", {DType::f32, {8, 8}}), image.shape, {1, 2});
  })));
  const auto scaled = [&](int operands) {
    return [&, operands](Builder& b, Value x) {
      Value y = b.cast(x, DType::f32);
      for (int i = 0; i < operands; ++i) {
        y = b.mul(y, b.broadcast_channels(b.input(std::to_string(2 + i), {DType::f32, {64}}), image.shape));
      }
      return b.cast(y, DType::bf16);
    };
  };
  EXPECT_TRUE(accepts(scaled(4)));
  EXPECT_FALSE(accepts(scaled(5)));  // More than registers hold.
}

TEST(ConvWgmma, IsChosenOnHopperAlone) {
  Graph graph("graph");
  Builder b(graph);
  const Value x = b.input("x", {DType::bf16, {2, 8, 8, 64}}), w = b.input("w", {DType::bf16, {64, 3, 3, 64}});
  const auto body = std::make_shared<const Graph>(conv({2, 8, 8, 64, 64}));
  graph.set_output("y", graph.add(ir::Op::fusion, {x, w}, ir::FusionAttrs{ir::Hero::conv, body}));
  for (const auto& [device, expected] : {std::pair("h100", true), {"h200", true}, {"a100", false}, {"b200", false}}) {
    const CudaPlan plan = lower_cuda(graph, passes::plan_memory(graph), *ir::find_device_spec(device));
    ASSERT_EQ(plan.calls.size(), 1) << device;
    EXPECT_EQ(!plan.calls[0].tensor_maps.empty(), expected) << device;
  }
}

}  // namespace
}  // namespace difuse::codegen::cuda
