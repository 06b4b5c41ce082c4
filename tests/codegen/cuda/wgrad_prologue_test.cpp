// Gradients of filters on Hopper whose image is computed on the way in: bit by bit those of the image that an
// elementwise kernel stores, and near the reference's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>

#include "codegen/cuda/emit/wgrad_wgmma/problem.h"
#include "codegen/cuda/emit/wgrad_wgmma/tiles.h"
#include "tests/codegen/cuda/conv_body.h"

namespace difuse::codegen::cuda {
namespace {

/// x, the prologue of image "0" and of what follows the gradient "1", which has the result's shape.
Value image_of(Builder& b, const Shapes& s, Before before, int64_t first) {
  int inputs = 2;
  Value image = b.input("0", {s.dtype, {s.n, s.h, s.w, first > 0 ? first : s.c}});
  if (first > 0) {
    image = b.concat({image, b.input(std::to_string(inputs++), {s.dtype, {s.n, s.h, s.w, s.c - first}})}, 3);
  }
  std::vector<Value> stored;
  return prologue(b, image, before, inputs, stored);
}

Value gradient_of(Builder& b, const Shapes& s) {
  const auto out = [&](int64_t extent) { return extent + 2 * s.pad - s.taps + 1; };
  return b.input("1", {s.dtype, {s.n, out(s.h), out(s.w), s.k}});
}

/// `is_scaled`: the result is, by a constant, and is stored twice.
Graph wgrad(const Shapes& s, Before before = Before::normalise, int64_t first = 0, bool is_scaled = false) {
  Graph body("body");
  Builder b(body);
  const Value x = image_of(b, s, before, first);
  const Value dw = b.conv_wgrad(x, gradient_of(b, s), {1, s.pad, s.taps, s.taps});
  body.set_output("0", is_scaled ? b.mul(dw, 0.5) : dw);
  if (is_scaled) body.set_output("1", b.cast(dw, DType::bf16));
  return body;
}

Recorder gradient_kernels(const Placed& placed) {
  EXPECT_TRUE(halo_wgrad(placed.spec));
  Recorder recorder;
  emit_wgrad_wgmma(placed.spec, recorder);
  return recorder;
}

struct GradientCase {
  std::string name;
  Shapes shapes;
  Before before = Before::normalise;
  int64_t first = 0;  ///< Channels of the first image of two.
  int64_t processors = 6;
  bool is_scaled = false;
  /// Not where a pair exchanges sums and goes on: transformers wait for that by a barrier of part of a block.
  bool find_races = true;

  Graph body() const { return wgrad(shapes, before, first, is_scaled); }
  ir::DeviceSpec device() const {
    ir::DeviceSpec device = h100();
    device.processors = processors;
    return device;
  }
  friend void PrintTo(const GradientCase& one, std::ostream* to) { *to << one.name; }
};

/// The image as an elementwise kernel stores it, and the gradient, for the body that reads it.
ir::TensorMap stored_inputs(const GradientCase& c, const ir::TensorMap& inputs) {
  Graph image("body");
  Builder b(image);
  image.set_output("0", image_of(b, c.shapes, c.before, c.first));
  // Its input "1" is missing: numbers follow one another.
  Placed placed{{image, {}, {}, {}, {}, "image", 0, h100()}, 0};
  const auto next = [&](const Type& type) {
    const Argument at{Argument::Kind::arena, placed.arena_bytes};
    placed.arena_bytes += (type.bytes() + kGuard + 255) / 256 * 256;
    return at;
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    placed.spec.operands.push_back(next(inputs.at(std::to_string(i)).type));
    placed.spec.alignment.push_back(256);
  }
  placed.spec.results = {next(image.type(image.outputs()[0].value))}, placed.spec.result_alignment = {256};
  Recorder recorder;
  emit_elementwise(placed.spec, recorder);
  const ir::TensorMap made = run_drafts(placed, recorder, inputs, "sm_90a");
  expect_reference(image, inputs, made, false);
  return {{"0", made.at("0")}, {"1", inputs.at("1")}};
}

std::vector<GradientCase> gradient_cases() {
  return {
      // Images of whole tiles, higher than a tile, several to a tile, with parts of tiles at every edge.
      {"square", {3, 16, 16, 64, 64}},
      {"channels_96", {2, 16, 16, 96, 64}, Before::normalise, 0, 8, true},
      {"channels_40", {2, 14, 9, 40, 72}, Before::scale, 0, 8, false, false},
      {"large_image", {1, 28, 28, 72, 64}, Before::normalise, 0, 10},
      {"odd_images", {5, 7, 7, 72, 136}, Before::normalise, 0, 14, true},
      {"flat_images", {9, 3, 23, 16, 72}, Before::normalise, 0, 4},
      {"whole_sums", {6, 8, 8, 72, 136}, Before::normalise, 0, 6, true},
      {"whole_sums_in_parts", {33, 8, 8, 40, 72}, Before::scale},
      {"no_border", {2, 12, 11, 40, 64, 3, 0}},
      {"wide_border", {1, 9, 6, 40, 64, 3, 2}},
      {"two_images", {2, 16, 9, 160, 64}, Before::normalise, 64, 8},
      // Lines of pixels: a tile in one image, in two, in many; parts of the last one.
      {"pointwise", {3, 16, 16, 64, 136, 1, 0}, Before::normalise, 0, 4, true, false},
      {"pointwise_28", {1, 28, 28, 96, 64, 1, 0}},
      {"pointwise_7", {9, 7, 7, 40, 200, 1, 0}, Before::scale},
      {"pointwise_odd", {3, 5, 17, 72, 136, 1, 0}, Before::normalise, 0, 4},
      {"pointwise_tiny", {33, 3, 2, 72, 64, 1, 0}},
      {"pointwise_blocks", {2, 10, 14, 328, 200, 1, 0}, Before::normalise, 0, 10, false, false},
      {"pointwise_two_images", {2, 12, 12, 320, 64, 1, 0}, Before::normalise, 128},
      {"concatenation", {2, 12, 12, 384, 64, 1, 0}, Before::nothing, 256},
      {"whole_pointwise_in_parts", {33, 8, 8, 72, 40, 1, 0}},
      {"one_pixel", {3, 1, 1, 64, 64, 1, 0}},
  };
}

class WgradPrologueCase : public ::testing::TestWithParam<GradientCase> {};

TEST_P(WgradPrologueCase, HasTheBitsOfTheStoredImages) {
  const GradientCase& c = GetParam();
  const ir::DeviceSpec device = c.device();
  const Graph body = c.body(), plain = wgrad(c.shapes, Before::nothing, 0, c.is_scaled);
  const ir::TensorMap inputs = random_inputs(body, false);
  const Placed placed = place(body, {}, device), stored = place(plain, {}, device);
  EXPECT_EQ(halo_wgrad(placed.spec)->has_prologue(), c.before != Before::nothing);
  const ir::TensorMap got = run_drafts(placed, gradient_kernels(placed), inputs, "sm_90a", c.find_races);
  const ir::TensorMap images = stored_inputs(c, inputs);
  expect_reference(plain, images, got, false);
  const ir::TensorMap want = run_drafts(stored, gradient_kernels(stored), images, "sm_90a");
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) EXPECT_EQ(got.at(name).data, tensor.data) << "output " << name;
}

TEST_P(WgradPrologueCase, CompilesWithoutSpills) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  const Graph body = GetParam().body();
  const Placed placed = place(body, {}, h100());
  for (const KernelDraft& draft : gradient_kernels(placed).drafts) expect_compiles(*nvrtc, draft, {"sm_90a"});
}

INSTANTIATE_TEST_SUITE_P(All, WgradPrologueCase, ::testing::ValuesIn(gradient_cases()),
                         [](const auto& one) { return one.param.name; });

TEST(WgradPrologue, TheBatchIsNotInTheSource) {
  for (const int64_t taps : {3, 1}) {
    const auto sources = [&](int64_t batch) {
      const Graph body = wgrad({batch, 16, 16, 128, 64, taps, taps / 2});
      std::vector<std::string> made;
      for (const KernelDraft& draft : gradient_kernels(place(body, {}, h100())).drafts) made.push_back(draft.source);
      return made;
    };
    EXPECT_EQ(sources(3), sources(64));
    EXPECT_EQ(sources(3).size(), 2u);
  }
}

/// Of all gradients there is one kernel that adds partial sums, whatever is computed of their images.
TEST(WgradPrologue, TheSecondKernelIsThatOfAStoredImage) {
  const Shapes shapes{3, 16, 16, 128, 64};
  const Graph body = wgrad(shapes), plain = wgrad(shapes, Before::nothing);
  const Recorder computed = gradient_kernels(place(body, {}, h100()));
  const Recorder stored = gradient_kernels(place(plain, {}, h100()));
  EXPECT_EQ(computed.drafts.at(1).source, stored.drafts.at(1).source);
  EXPECT_EQ(computed.drafts[0].grid.x, stored.drafts[0].grid.x);
  EXPECT_EQ(computed.workspace_bytes, stored.workspace_bytes);
}

/// The longest ring and the shortest, blocks of one to three consumers.
TEST(WgradPrologueTiles, NoneChangesABit) {
  std::set<std::string> seen;
  GradientCase device{"tiles", {}, Before::normalise, 0, 3};
  for (const Shapes& shapes : {Shapes{5, 7, 7, 72, 136}, Shapes{9, 5, 7, 72, 136, 1, 0}, Shapes{1, 20, 20, 72, 40}}) {
    const Graph body = wgrad(shapes);
    const ir::DeviceSpec few = device.device();
    Placed placed = place(body, {}, few);
    const ir::TensorMap inputs = random_inputs(body, false);
    const ir::Tensor first = run_drafts(placed, gradient_kernels(placed), inputs, "sm_90a", false).at("0");
    const std::vector<WgradTile> tiles = candidates(*halo_wgrad(placed.spec), few);
    for (size_t i = 0; i < tiles.size(); ++i) {
      if (!seen.insert(to_string(tiles[i])).second) continue;
      placed.spec.tiles = {i};
      EXPECT_EQ(run_drafts(placed, gradient_kernels(placed), inputs, "sm_90a", false).at("0").data, first.data)
          << to_string(tiles[i]);
    }
  }
  EXPECT_GT(seen.size(), 8u);
}

/// Every tile, of one image and of two.
TEST(SlowWgradPrologueTiles, AllCompileWithoutSpills) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  for (const auto& [shapes, first] : {std::pair{Shapes{32, 8, 8, 256, 256}, 64},
                                      {Shapes{32, 8, 8, 256, 768, 1, 0}, 0},
                                      {Shapes{32, 64, 64, 192, 64}, 128},
                                      {Shapes{32, 16, 16, 192, 576, 1, 0}, 0}}) {
    const Graph body = wgrad(shapes, Before::normalise, first, true);
    Placed placed = place(body, {}, h100());
    const std::vector<WgradTile> tiles = candidates(*halo_wgrad(placed.spec), h100());
    for (size_t i = 0; i < tiles.size(); ++i) {
      placed.spec.tiles = {i};
      EXPECT_NO_THROW(nvrtc->compile(source_of(gradient_kernels(placed).drafts.front(), "sm_90a")))
          << to_string(tiles[i]);
    }
  }
}

}  // namespace
}  // namespace difuse::codegen::cuda
