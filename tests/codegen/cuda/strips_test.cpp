// What a convolution's kernel takes from whole strips of its result: an image's statistics, bit for bit those of the
// kernel that reads what was stored, and sums over its pixels; whatever the tile and the batch. Where no tile is whole
// strips, kernels of their own do it.
#include <gtest/gtest.h>

#include <set>

#include "codegen/cuda/emit/contraction/problem.h"
#include "codegen/cuda/emit/contraction/source.h"
#include "codegen/cuda/emit/contraction/tiles.h"
#include "codegen/cuda/emit/conv_wgmma/problem.h"
#include "codegen/cuda/emit/conv_wgmma/source.h"
#include "codegen/cuda/emit/conv_wgmma/sums.h"
#include "codegen/cuda/emit/conv_wgmma/tiles.h"
#include "codegen/jit/nvrtc.h"
#include "ir/builder.h"
#include "tests/codegen/cuda/body_run.h"

namespace difuse::codegen::cuda {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Shape;
using ir::TensorMap;
using ir::Value;

struct Shapes {
  int64_t n, h, w, c, k;
  int64_t taps = 3, stride = 1;
};

/// conv, bias, `residual`, a cast to `dtype` (output "0"), mean and M2 of that ("1", "2").
Graph conv(const Shapes& s, DType dtype, bool residual = false) {
  Graph body("body");
  Builder b(body);
  const Value x = b.input("0", {dtype, {s.n, s.h, s.w, s.c}}), w = b.input("1", {dtype, {s.k, s.taps, s.taps, s.c}});
  Value y = b.conv_fprop(x, w, s.stride, s.taps / 2);
  const Shape shape = b.shape(y);
  y = b.add(y, b.broadcast_channels(b.input("2", {DType::f32, {s.k}}), shape));
  if (residual) y = b.add(y, b.cast(b.input("3", {dtype, shape}), DType::f32));
  const Value stored = b.cast(y, dtype);
  const auto moments = b.channel_moments(b.cast(stored, DType::f32));
  body.set_output("0", stored);
  body.set_output("1", moments.mean);
  body.set_output("2", moments.m2);
  return body;
}

/// Of a stored gradient [N, H, W, C] behind silu(x * scale), x being input "2" and scale input "3": the gradient's sums
/// over each image's pixels, with and without x, and over all images'. Outputs from "1" on. `masked`: by input "4".
void add_sums(Builder& b, Value stored, bool masked) {
  const Shape shape = b.shape(stored);
  const Value x = b.cast(b.input("2", {b.type(stored).dtype, shape}), DType::f32);
  const Value scale = b.broadcast_image_channels(b.input("3", {DType::f32, {shape[0], shape[3]}}), shape);
  const Value z = b.mul(x, scale), s = b.sigmoid(z);
  Value dy = b.cast(stored, DType::f32);
  if (masked) dy = b.mul(dy, b.cast(b.input("4", {DType::u8, shape}), DType::f32));
  const Value dz = b.mul(dy, b.mul(s, b.add(b.mul(z, b.sub(1.0, s)), 1.0)));
  b.graph().set_output("1", b.reduce_sum(dz, {1, 2}));
  b.graph().set_output("2", b.reduce_sum(b.mul(dz, x), {1, 2}));
  b.graph().set_output("3", b.reduce_sum(dz, {0, 1, 2}));
}

Graph gradient(const Shapes& s, DType dtype = DType::bf16, bool masked = false) {
  Graph body("body");
  Builder b(body);
  const Value x = b.input("0", {dtype, {s.n, s.h, s.w, s.c}});
  const Value w = b.input("1", {dtype, {s.k, s.taps, s.taps, s.c}});
  const Value stored = b.cast(b.conv_fprop(x, w, s.stride, s.taps / 2), dtype);
  body.set_output("0", stored);
  add_sums(b, stored, masked);
  return body;
}

struct Case {
  std::string name;
  Graph body;
  const char* device = "h100";
  size_t kernels = 1;
  Places places = {};

  const ir::DeviceSpec& spec() const { return *ir::find_device_spec(device); }
  const char* architecture() const { return spec().architecture == 90 ? "sm_90a" : "sm_80"; }
  friend void PrintTo(const Case& one, std::ostream* to) { *to << one.name; }
};

std::vector<Case> cases() {
  const auto bf16 = DType::bf16, f32 = DType::f32;
  return {
      // Tiles of one strip and of two, of several images; parts of strips at every edge.
      {"whole_tiles", conv({2, 32, 8, 64, 64}, bf16)},
      {"residual", conv({2, 16, 16, 64, 64}, bf16, true)},
      {"ragged", conv({3, 14, 9, 72, 40}, bf16, true)},
      {"high", conv({1, 45, 10, 64, 64}, bf16)},
      {"low", conv({5, 8, 8, 136, 72}, bf16)},
      {"tiny", conv({5, 3, 5, 16, 72}, bf16)},
      {"strided", conv({3, 35, 18, 72, 40, 3, 2}, bf16, true)},
      {"abreast", conv({9, 4, 4, 72, 72}, bf16, true)},
      {"abreast_ragged", conv({7, 20, 3, 40, 64}, bf16, true)},
      {"abreast_pointwise", conv({5, 4, 4, 136, 64, 1}, bf16, true)},
      {"abreast_pairs", conv({13, 2, 2, 64, 72}, bf16)},
      {"abreast_in_place", conv({3, 4, 4, 64, 64}, bf16, true), "h100", 1, {.in_place = {{0, 3}}}},
      {"pointwise", conv({2, 16, 24, 72, 136, 1}, bf16, true)},
      {"pointwise_ragged", conv({3, 5, 7, 72, 40, 1}, bf16)},
      {"in_place", conv({2, 9, 8, 64, 64}, bf16, true), "h100", 1, {.in_place = {{0, 3}}}},
      // The same in the portable kernels: on the tensor cores, and by fused multiply-adds.
      {"portable", conv({3, 16, 16, 64, 64}, bf16, true), "a100"},
      {"portable_high", conv({1, 32, 8, 40, 130}, bf16), "a100"},
      {"portable_low", conv({5, 4, 8, 64, 33}, bf16), "a100"},
      {"portable_stride", conv({3, 16, 32, 16, 24, 3, 2}, bf16), "a100"},
      {"portable_pointwise", conv({3, 8, 16, 72, 40, 1}, bf16, true), "a100"},
      {"portable_in_place", conv({2, 8, 8, 64, 64}, bf16, true), "a100", 1, {.in_place = {{0, 3}}}},
      {"few_channels", conv({3, 16, 8, 3, 36}, bf16)},
      {"portable_tf32", conv({3, 16, 8, 36, 24}, f32, true), "a100", 1, {.tf32 = true}},
      {"tf32", conv({2, 32, 8, 64, 64}, f32), "h100", 1, {.tf32 = true}},
      {"tf32_ragged", conv({3, 14, 9, 36, 100}, f32, true), "h100", 1, {.tf32 = true}},
      {"tf32_low", conv({5, 7, 7, 100, 20}, f32, true), "h100", 1, {.tf32 = true}},
      {"tf32_strided", conv({2, 16, 17, 36, 72, 3, 2}, f32, true), "h100", 1, {.tf32 = true}},
      {"tf32_abreast", conv({5, 4, 4, 36, 100}, f32, true), "h100", 1, {.tf32 = true}},
      {"tf32_abreast_pairs", conv({19, 2, 2, 36, 64}, f32, true), "h100", 1, {.tf32 = true}},
      {"tf32_pointwise", conv({2, 16, 24, 72, 136, 1}, f32, true), "h100", 1, {.tf32 = true}},
      {"tf32_in_place", conv({2, 9, 8, 64, 64}, f32, true), "h100", 1, {.tf32 = true, .in_place = {{0, 3}}}},
      {"f32", conv({3, 8, 16, 20, 36}, f32), "a100"},
      {"f32_in_place", conv({1, 8, 8, 20, 36}, f32, true), "a100", 1, {.in_place = {{0, 3}}}},
      {"one_part", conv({3, 16, 8, 64, 64}, bf16), "h100", 1, {.unwanted = {1}}},
      // No tile is whole strips.
      {"apart", conv({3, 7, 7, 64, 64}, bf16, true), "a100", 2},
      {"apart_high", conv({2, 20, 8, 64, 64}, bf16), "a100", 2},
      {"apart_one_pixel", conv({3, 1, 1, 64, 64, 1}, bf16), "h100", 2},
      {"apart_f32", conv({3, 6, 8, 20, 36}, f32), "h100", 2},
  };
}

Recorder emitted(const Placed& placed) {
  Recorder recorder;
  find_emitter(placed.spec).emit(placed.spec, recorder);
  return recorder;
}

/// The statistics of what was stored ("0", "1"), from the kernel that reads it.
TensorMap moments_of(const ir::Tensor& stored, const Case& of) {
  Graph body("body");
  Builder b(body);
  const auto moments = b.channel_moments(b.cast(b.input("0", stored.type), DType::f32));
  body.set_output("0", moments.mean);
  body.set_output("1", moments.m2);
  const Placed placed = place(body, {}, of.spec());
  Recorder recorder;
  emit_reduction(placed.spec, recorder);
  return run_drafts(placed, recorder, {{"0", stored}}, of.architecture());
}

class StripsCase : public ::testing::TestWithParam<Case> {};

TEST_P(StripsCase, AreThoseOfWhatIsStored) {
  const Case& one = GetParam();
  const TensorMap inputs = random_inputs(one.body, one.places.tf32);
  const Placed placed = place(one.body, one.places, one.spec());
  const Recorder recorder = emitted(placed);
  EXPECT_EQ(recorder.drafts.size(), one.kernels);
  const TensorMap got = run_drafts(placed, recorder, inputs, one.architecture());
  expect_reference(one.body, inputs, {{"0", got.at("0")}}, one.places.tf32);
  const TensorMap want = moments_of(got.at("0"), one);
  for (const int moment : {0, 1}) {
    if (one.places.unwanted.contains(moment + 1)) continue;
    EXPECT_EQ(got.at(std::to_string(moment + 1)).data, want.at(std::to_string(moment)).data) << moment;
  }
}

void expect_compiles(const Case& one) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  for (const KernelDraft& draft : emitted(place(one.body, one.places, one.spec())).drafts) {
    if (one.spec().architecture == 90) {
      expect_compiles(*nvrtc, draft, {"sm_90a"});
    } else {
      expect_compiles(*nvrtc, draft, {"sm_80", "sm_90a"});
    }
  }
}

TEST_P(StripsCase, CompileWithoutSpills) { expect_compiles(GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, StripsCase, ::testing::ValuesIn(cases()), [](const auto& one) { return one.param.name; });

std::vector<Case> sums() {
  return {
      {"one_strip", gradient({1, 8, 8, 64, 64})},
      {"images", gradient({3, 8, 8, 64, 64}), "h100", 2},
      {"strips", gradient({2, 32, 24, 64, 72}), "h100", 3},
      {"ragged", gradient({3, 21, 9, 72, 40}), "h100", 3},
      {"pointwise", gradient({2, 16, 16, 136, 64, 1}), "h100", 3},
      {"abreast", gradient({7, 4, 4, 136, 72}), "h100", 2},
      {"abreast_high", gradient({3, 20, 3, 40, 72}), "h100", 3},
      {"apart", gradient({3, 9, 8, 64, 64}), "a100", 4},
      {"masked", gradient({3, 21, 9, 72, 48}, DType::bf16, true), "h100", 3},
      {"masked_strips", gradient({2, 32, 24, 64, 144}, DType::bf16, true), "h100", 3},
      {"masked_abreast", gradient({7, 4, 4, 136, 80}, DType::bf16, true), "h100", 2},
      {"masked_apart", gradient({3, 16, 8, 64, 72}, DType::bf16, true), "h100", 4},
      {"tf32", gradient({2, 32, 24, 32, 72}, DType::f32), "h100", 3, {.tf32 = true}},
      {"tf32_ragged", gradient({3, 21, 9, 72, 36}, DType::f32), "h100", 3, {.tf32 = true}},
  };
}

class StripSumsCase : public ::testing::TestWithParam<Case> {};

TEST_P(StripSumsCase, AreThoseOfWhatIsStored) {
  const Case& one = GetParam();
  const TensorMap inputs = random_inputs(one.body, one.places.tf32);
  const Placed placed = place(one.body, one.places, one.spec());
  const Recorder recorder = emitted(placed);
  EXPECT_EQ(recorder.drafts.size(), one.kernels);
  const TensorMap got = run_drafts(placed, recorder, inputs, one.architecture());
  expect_reference(one.body, inputs, {{"0", got.at("0")}}, one.places.tf32);
  // The sums of what was rounded.
  Graph rest("rest");
  Builder b(rest);
  const bool masked = inputs.contains("4");
  add_sums(b, b.input("0", got.at("0").type), masked);
  TensorMap known = {{"0", got.at("0")}, {"2", inputs.at("2")}, {"3", inputs.at("3")}};
  if (masked) known["4"] = inputs.at("4");
  for (const auto& [name, tensor] : ir::run_reference(rest, known, {}).outputs) {
    EXPECT_LE(ir::relative_error(got.at(name).data, tensor.data), 2e-6) << "output " << name;
  }
}

TEST_P(StripSumsCase, CompileWithoutSpills) { expect_compiles(GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, StripSumsCase, ::testing::ValuesIn(sums()),
                         [](const auto& one) { return one.param.name; });

/// All bodies have the same results.
void expect_same(const Placed& placed, const KernelDraft& draft, const TensorMap& inputs, TensorMap& first,
                 const std::string& tile) {
  Recorder recorder;
  recorder.launch(draft);
  const TensorMap got =
      run_drafts(placed, recorder, inputs, placed.spec.device.architecture == 90 ? "sm_90a" : "sm_80");
  if (first.empty()) first = got;
  for (const auto& [name, tensor] : got) EXPECT_EQ(tensor.data, first.at(name).data) << tile << ", output " << name;
}

TEST(Strips, NoTileChangesABit) {
  for (const Graph& body : {conv({2, 32, 8, 64, 64}, DType::bf16), conv({3, 8, 8, 72, 40, 1}, DType::bf16)}) {
    const TensorMap inputs = random_inputs(body, false);
    TensorMap first;
    const Placed hopper = place(body, {}, h100());
    const HaloConv halo = *halo_conv(hopper.spec);
    std::set<int64_t> rows;
    for (const HaloTile& tile : candidates(halo, h100())) {
      rows.insert(tile.rows);
      expect_same(hopper, halo_conv_kernel(hopper.spec, halo, tile), inputs, first, to_string(tile));
    }
    EXPECT_GE(rows.size(), 2);
    EXPECT_EQ(rows.contains(8), halo.height == 8);

    const Placed portable = place(body, {}, *ir::find_device_spec("a100"));
    const GemmProblem problem = gemm_problem(portable.spec);
    TensorMap first_portable;
    std::set<int> seen;
    for (const GemmTile& tile : candidates(problem, portable.spec.device)) {
      if (!seen.insert(tile.m * 1000 + tile.n).second) continue;
      expect_same(portable, product_kernel(portable.spec, problem, tile), inputs, first_portable, to_string(tile));
    }
    EXPECT_GE(seen.size(), 4);
  }
}

void expect_no_tile_changes_a_bit(const Graph& body) {
  const TensorMap inputs = random_inputs(body, false);
  const Placed placed = place(body, {}, h100());
  const HaloConv halo = *halo_conv(placed.spec);
  TensorMap first;
  for (const HaloTile& tile : candidates(halo, h100())) {
    Recorder recorder;
    const KernelSpec strips = with_strip_sums(placed.spec, halo, recorder);
    recorder.launch(halo_conv_kernel(strips, halo, tile));
    add_strip_sums(placed.spec, strips, halo, recorder);
    const TensorMap got = run_drafts(placed, recorder, inputs, "sm_90a");
    if (first.empty()) first = got;
    for (const auto& [name, tensor] : got) {
      EXPECT_EQ(tensor.data, first.at(name).data) << to_string(tile) << ", output " << name;
    }
  }
}

TEST(StripSums, NoTileChangesABit) {
  expect_no_tile_changes_a_bit(gradient({2, 16, 16, 64, 64}));
  expect_no_tile_changes_a_bit(gradient({2, 16, 16, 64, 64}, DType::bf16, true));
  expect_no_tile_changes_a_bit(gradient({6, 4, 4, 64, 64}));
  expect_no_tile_changes_a_bit(gradient({6, 4, 4, 64, 64}, DType::bf16, true));
}

TEST(SlowStrips, NoTileSpills) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  for (const bool residual : {false, true}) {
    for (const Shapes& s : {Shapes{2, 64, 64, 64, 64},
                            {2, 64, 64, 192, 64},
                            {2, 32, 32, 128, 128},
                            {2, 8, 8, 256, 256},
                            {2, 20, 9, 64, 64},
                            {8, 4, 4, 256, 256},
                            {8, 20, 3, 64, 64},
                            {2, 16, 16, 192, 192, 1}}) {
      for (const Graph& body : {conv(s, DType::bf16, residual), gradient(s, DType::bf16, residual)}) {
        const Placed placed = place(body, {}, h100());
        const HaloConv halo = *halo_conv(placed.spec);
        for (const HaloTile& tile : candidates(halo, h100())) {
          const CudaSource source = source_of(halo_conv_kernel(placed.spec, halo, tile), "sm_90a");
          EXPECT_NO_THROW(nvrtc->compile(source)) << to_string(tile);
        }
      }
    }
  }
}

TEST(Strips, AnImageHasTheSameBitsInEveryBatchFromOneSource) {
  for (const auto& [device, size] : {std::pair("h100", 8), {"h100", 4}, {"a100", 8}}) {
    const auto of_batch = [&](int64_t n) { return Case{"", conv({n, size, size, 72, 64}, DType::bf16, true), device}; };
    const Case large = of_batch(9);
    const Placed placed = place(large.body, {}, large.spec());
    const TensorMap from = random_inputs(large.body, false);
    const TensorMap want = run_drafts(placed, emitted(placed), from, large.architecture());
    for (const int64_t batch : {1, 4}) {
      const Case small = of_batch(batch);
      const Placed now = place(small.body, {}, small.spec());
      EXPECT_EQ(emitted(now).drafts.front().source, emitted(placed).drafts.front().source);
      const auto head = [](const ir::Tensor& t, int64_t count) {
        return std::vector<double>(t.data.begin(), t.data.begin() + count);
      };
      TensorMap inputs;
      for (const auto& [name, tensor] : from) {
        const ir::Type& type = small.body.type(small.body.find_input(name));
        inputs[name] = ir::Tensor(type, head(tensor, type.elements()));
      }
      for (const auto& [name, tensor] : run_drafts(now, emitted(now), inputs, small.architecture())) {
        EXPECT_EQ(tensor.data, head(want.at(name), tensor.type.elements()))
            << device << size << ", " << batch << ", output " << name;
      }
    }
  }
}

// The values may be stored for nobody else, differ from what is stored, and be several.
TEST(Strips, MayBeOfWhatNobodyElseReads) {
  Graph body("body");
  Builder b(body);
  const Value y =
      b.conv_fprop(b.input("0", {DType::bf16, {2, 8, 8, 16}}), b.input("1", {DType::bf16, {24, 3, 3, 16}}), 1, 1);
  const auto of_value = b.channel_moments(b.silu(y));
  body.set_output("0", of_value.mean);
  body.set_output("1", of_value.m2);
  const auto run = [&](const Graph& graph, size_t kernels) {
    const TensorMap inputs = random_inputs(graph, false);
    const Placed placed = place(graph, {}, h100());
    const Recorder recorder = emitted(placed);
    EXPECT_EQ(recorder.drafts.size(), kernels);
    expect_reference(graph, inputs, run_drafts(placed, recorder, inputs, "sm_90a"), false);
  };
  run(body, 1);
  const auto of_sum = b.channel_moments(y);
  body.set_output("2", b.add(y, y));
  body.set_output("3", of_sum.m2);
  run(body, 3);
}

}  // namespace
}  // namespace difuse::codegen::cuda
