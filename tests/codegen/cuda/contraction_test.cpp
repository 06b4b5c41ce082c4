// Convolutions and matrix products: their kernels compile, and run on the CPU they give what the reference gives, with
// the same bits whatever the batch.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "codegen/cuda/emit/contraction/problem.h"
#include "codegen/cuda/emit/contraction/source.h"
#include "codegen/cuda/emit/contraction/tiles.h"
#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/parameters.h"
#include "codegen/jit/nvrtc.h"
#include "ir/builder.h"
#include "ir/flops.h"
#include "ir/op.h"
#include "ir/reference.h"
#include "tests/codegen/cuda/body_run.h"
#include "tests/codegen/cuda/recorder.h"

namespace difuse::codegen::cuda {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Shape;
using ir::Tensor;
using ir::TensorMap;
using ir::Type;
using ir::Value;

/// How a problem lies in memory and how it is computed.
struct Setting {
  int64_t alignment = 256;         ///< Of everything: each tensor starts so many bytes after a multiple of 256.
  bool tf32 = false;               ///< Operands hold floats rounded to tf32.
  std::optional<GemmTile> tile{};  ///< Instead of the best one; only without splits.
  std::set<int> unwanted{};
  std::map<int, int> in_place{};  ///< Result -> the operand that it overwrites.
  bool is_wide = false;           ///< Offsets of 64 bits; only without splits.
};

Placed place(const Graph& body, const Setting& setting) {
  return cuda::place(body, {setting.alignment, setting.tf32, setting.unwanted, setting.in_place}, h100());
}

Recorder emitted(const Placed& placed, const Setting& setting = {}) {
  Recorder recorder;
  GemmProblem problem = gemm_problem(placed.spec);
  problem.is_wide = setting.is_wide;
  if (setting.tile || setting.is_wide) {
    EXPECT_FALSE(problem.is_split);
    recorder.launch(product_kernel(placed.spec, problem, setting.tile.value_or(candidates(problem, h100()).front())));
  } else {
    emit_contraction(placed.spec, recorder);
  }
  return recorder;
}

/// Results by output name; those that are unwanted are missing.
TensorMap run(const Graph& body, const TensorMap& inputs, const Setting& setting = {}) {
  EXPECT_TRUE(accepts_contraction(body));
  const Placed placed = place(body, setting);
  return run_drafts(placed, emitted(placed, setting), inputs, "sm_80");
}

void expect_reference(const Graph& body, const Setting& setting = {}) {
  const TensorMap inputs = random_inputs(body, setting.tf32);
  cuda::expect_reference(body, inputs, run(body, inputs, setting), setting.tf32);
}

struct Conv {
  ir::Op op;
  int64_t n, h, w, c, k, r, s, stride, pad;

  int64_t out_h() const { return (h + 2 * pad - r) / stride + 1; }
  int64_t out_w() const { return (w + 2 * pad - s) / stride + 1; }
  Type image(DType dtype) const { return {dtype, {n, h, w, c}}; }
  Type gradient(DType dtype) const { return {dtype, {n, out_h(), out_w(), k}}; }
  Type filter(DType dtype) const { return {dtype, {k, r, s, c}}; }

  Value add(Builder& b, DType dtype) const {
    const Value first = b.input("0", op == ir::Op::conv_dgrad ? gradient(dtype) : image(dtype));
    const Value second = b.input("1", op == ir::Op::conv_wgrad ? gradient(dtype) : filter(dtype));
    if (op == ir::Op::conv_fprop) return b.conv_fprop(first, second, stride, pad);
    if (op == ir::Op::conv_dgrad) return b.conv_dgrad(first, second, {stride, pad, h, w});
    return b.conv_wgrad(first, second, {stride, pad, r, s});
  }
};

struct Matmul {
  int64_t m, n, k;
  bool transpose_a, transpose_b;

  Value add(Builder& b, DType dtype) const {
    const Value first = b.input("0", {dtype, transpose_a ? Shape{k, m} : Shape{m, k}});
    const Value second = b.input("1", {dtype, transpose_b ? Shape{n, k} : Shape{k, n}});
    return b.matmul(first, second, transpose_a, transpose_b);
  }
};

/// The single node, perhaps cast.
template <class Contraction>
Graph plain(const Contraction& contraction, DType dtype, DType result = DType::f32) {
  Graph body("body");
  Builder b(body);
  body.set_output("0", b.cast(contraction.add(b, dtype), result));
  return body;
}

/// Bias, time embedding, residual; one result in `dtype`, one as it is.
Graph block_end(const Conv& conv, DType dtype) {
  Graph body("body");
  Builder b(body);
  const Value x = conv.add(b, dtype);
  const Shape shape = b.shape(x);
  const Value bias = b.input("2", {DType::f32, {shape[3]}}), time = b.input("3", {DType::f32, {shape[0], shape[3]}});
  const Value residual = b.input("4", {dtype, shape});
  const Value biased = b.add(b.add(x, b.broadcast_channels(bias, shape)), b.broadcast_image_channels(time, shape));
  body.set_output("0", b.cast(b.add(biased, b.cast(residual, DType::f32)), dtype));
  body.set_output("1", b.silu(biased));
  return body;
}

/// A projection of the pixels of images: the rows' bias, then a residual and the result as images.
Graph projection(int64_t n, int64_t side, int64_t c, int64_t k, DType dtype) {
  Graph body("body");
  Builder b(body);
  const Value x = Matmul{n * side * side, k, c, false, true}.add(b, dtype);
  const Value bias = b.input("2", {DType::f32, {k}}), residual = b.input("3", {DType::f32, {n, side, side, k}});
  const Value biased = b.add(x, b.broadcast(bias, b.shape(x), {1}));
  body.set_output("0", b.add(b.reshape(biased, {n, side, side, k}), residual));
  body.set_output("1", b.cast(biased, dtype));
  return body;
}

/// A weight's gradient in units of the loss scale, added to what there is.
template <class Contraction>
Graph accumulated(const Contraction& contraction, DType dtype) {
  Graph body("body");
  Builder b(body);
  const Value x = contraction.add(b, dtype);
  const Value scale = b.input("2", {DType::f32, {}}), before = b.input("3", {DType::f32, b.shape(x)});
  body.set_output("0", b.add(before, b.mul(x, b.broadcast_scalar(scale, b.shape(x)))));
  return body;
}

/// Operands that the body itself rounds to tf32.
template <class Contraction>
Graph rounding(const Contraction& contraction) {
  const Graph whole = plain(contraction, DType::f32);
  return ir::rebuild(whole, [](Graph& to, int, const ir::Node& node, const std::vector<Value>& operands) {
    std::vector<Value> in = operands;
    for (Value& v : in) v = to.add(ir::Op::round_tf32, {v});
    return ir::copy_node(to, node, in);
  });
}

struct Case {
  std::string name;
  Graph body;
  Setting setting;

  friend void PrintTo(const Case& one, std::ostream* to) { *to << one.name; }
};

std::string short_name(DType dtype, bool tf32) { return tf32 ? "tf32" : std::string(ir::to_string(dtype)); }

void add_convs(std::vector<Case>& cases) {
  constexpr ir::Op kOps[] = {ir::Op::conv_fprop, ir::Op::conv_dgrad, ir::Op::conv_wgrad};
  struct Geometry {
    int64_t n, h, w, c, k, r, s, stride, pad;
  };
  // Channels in whole chunks, in a chunk and a rest, few and odd; borders; strides that leave pixels over.
  constexpr Geometry kGeometries[] = {
      {1, 8, 8, 64, 64, 3, 3, 1, 1},  {2, 7, 7, 96, 36, 3, 3, 1, 1}, {3, 6, 10, 1, 32, 3, 3, 1, 1},
      {2, 9, 5, 3, 20, 3, 3, 1, 1},   {2, 8, 8, 36, 6, 3, 3, 2, 1},  {2, 7, 9, 20, 33, 3, 3, 2, 1},
      {3, 7, 7, 100, 40, 1, 1, 1, 0}, {1, 9, 9, 24, 16, 1, 1, 2, 0}, {2, 8, 8, 8, 24, 2, 2, 2, 0},
      {1, 10, 7, 12, 5, 5, 5, 1, 2},  {2, 9, 6, 5, 7, 5, 3, 3, 2},   {1, 16, 16, 192, 130, 1, 1, 1, 0},
  };
  for (const Geometry& g : kGeometries) {
    for (const ir::Op op : kOps) {
      const Conv conv{op, g.n, g.h, g.w, g.c, g.k, g.r, g.s, g.stride, g.pad};
      for (const auto& [dtype, tf32] : {std::pair(DType::bf16, false), {DType::f32, false}, {DType::f32, true}}) {
        // What tf32 does that f32 does not shows in a few.
        if (tf32 && g.c != 64 && g.c != 20) continue;
        cases.push_back({fmt::format("{}_{}x{}s{}p{}_n{}h{}w{}c{}k{}_{}", ir::to_string(op), g.r, g.s, g.stride, g.pad,
                                     g.n, g.h, g.w, g.c, g.k, short_name(dtype, tf32)),
                         plain(conv, dtype),
                         {.tf32 = tf32}});
      }
    }
  }
}

void add_matmuls(std::vector<Case>& cases) {
  struct Sizes {
    int64_t m, n, k;
    bool every_dtype;
  };
  for (const auto& [m, n, k, every] :
       {Sizes{1, 1, 1, false}, {33, 36, 20, false}, {130, 48, 100, true}, {5, 3, 300, false}, {33, 20, 4000, false}}) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        for (const auto& [dtype, tf32] :
             {std::pair(DType::bf16, false), {DType::f16, false}, {DType::f32, false}, {DType::f32, true}}) {
          if ((tf32 || dtype == DType::f16) && !every) continue;
          cases.push_back({fmt::format("matmul_{}x{}x{}{}{}_{}", m, n, k, ta ? "_ta" : "", tb ? "_tb" : "",
                                       short_name(dtype, tf32)),
                           plain(Matmul{m, n, k, ta, tb}, dtype),
                           {.tf32 = tf32}});
        }
      }
    }
  }
}

void add_epilogues(std::vector<Case>& cases) {
  using ir::Op;
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const std::string suffix = "_" + short_name(dtype, false);
    const auto add = [&](const std::string& name, Graph body, Setting setting = {}) {
      cases.push_back({name + suffix, std::move(body), std::move(setting)});
    };
    add("block_end_fprop", block_end({Op::conv_fprop, 2, 8, 6, 64, 64, 3, 3, 1, 1}, dtype));
    add("block_end_fprop_odd", block_end({Op::conv_fprop, 3, 5, 7, 3, 33, 3, 3, 1, 1}, dtype));
    add("block_end_fprop_20", block_end({Op::conv_fprop, 2, 5, 7, 36, 20, 3, 3, 2, 1}, dtype));
    add("block_end_dgrad", block_end({Op::conv_dgrad, 2, 7, 8, 36, 40, 3, 3, 1, 1}, dtype));
    add("block_end_dgrad_stride", block_end({Op::conv_dgrad, 3, 7, 8, 36, 40, 3, 3, 2, 1}, dtype));
    add("one_result", block_end({Op::conv_fprop, 2, 4, 4, 32, 32, 3, 3, 1, 1}, dtype), {.unwanted = {1}});
    add("projection", projection(2, 5, 64, 96, dtype));
    add("projection_odd", projection(3, 3, 20, 7, dtype));
    add("accumulated_wgrad", accumulated(Conv{Op::conv_wgrad, 3, 16, 16, 20, 36, 3, 3, 1, 1}, dtype));
    add("accumulated_wgrad_odd", accumulated(Conv{Op::conv_wgrad, 2, 16, 16, 3, 33, 3, 3, 1, 1}, dtype));
    add("accumulated_matmul", accumulated(Matmul{33, 20, 1000, true, false}, dtype));
    // Large enough for several runs of each thread that adds partial sums, the last ones outside the result.
    add("accumulated_large", accumulated(Matmul{131, 260, 300, true, false}, dtype));
    // Large enough for one split alone.
    add("accumulated_whole", accumulated(Matmul{1500, 1480, 40, true, false}, dtype));
    for (const int64_t alignment : {4, 8, 16}) {
      add(fmt::format("aligned_{}_fprop", alignment), plain(Conv{Op::conv_fprop, 1, 6, 6, 32, 32, 3, 3, 1, 1}, dtype),
          {.alignment = alignment});
      add(fmt::format("aligned_{}_wgrad", alignment), plain(Conv{Op::conv_wgrad, 1, 6, 6, 32, 32, 3, 3, 1, 1}, dtype),
          {.alignment = alignment});
    }
  }
  cases.push_back({"aligned_2_fprop_bf16",
                   plain(Conv{Op::conv_fprop, 1, 6, 6, 32, 32, 3, 3, 1, 1}, DType::bf16, DType::bf16),
                   {.alignment = 2}});
  cases.push_back({"aligned_2_dgrad_bf16",
                   plain(Conv{Op::conv_dgrad, 1, 6, 6, 32, 32, 3, 3, 1, 1}, DType::bf16, DType::bf16),
                   {.alignment = 2}});
  cases.push_back({"in_place_fprop_bf16",
                   block_end({Op::conv_fprop, 2, 8, 6, 64, 64, 3, 3, 1, 1}, DType::bf16),
                   {.in_place = {{0, 4}}}});
  cases.push_back({"in_place_wgrad_bf16",
                   accumulated(Conv{Op::conv_wgrad, 3, 16, 16, 20, 36, 3, 3, 1, 1}, DType::bf16),
                   {.in_place = {{0, 3}}}});
  for (const Op op : {Op::conv_fprop, Op::conv_dgrad}) {
    cases.push_back({fmt::format("wide_{}", ir::to_string(op)),
                     block_end({op, 2, 7, 8, 36, 40, 3, 3, 2, 1}, DType::bf16),
                     {.is_wide = true}});
  }
  cases.push_back({"wide_matmul", plain(Matmul{40, 24, 100, false, false}, DType::bf16), {.is_wide = true}});
  cases.push_back({"rounding_fprop", rounding(Conv{Op::conv_fprop, 1, 6, 6, 40, 32, 3, 3, 1, 1}), {}});
  cases.push_back({"rounding_matmul", rounding(Matmul{40, 24, 100, false, false}), {}});
}

std::vector<Case> cases() {
  std::vector<Case> all;
  add_convs(all);
  add_matmuls(all);
  add_epilogues(all);
  return all;
}

class ContractionCase : public ::testing::TestWithParam<Case> {};

TEST_P(ContractionCase, AgreesWithTheReference) { expect_reference(GetParam().body, GetParam().setting); }

TEST_P(ContractionCase, CompilesWithoutSpills) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  for (const KernelDraft& draft : emitted(place(GetParam().body, GetParam().setting), GetParam().setting).drafts) {
    expect_compiles(*nvrtc, draft, {"sm_80", "sm_90a"});
  }
}

INSTANTIATE_TEST_SUITE_P(All, ContractionCase, ::testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

/// The first `count` elements.
std::vector<double> head(const Tensor& t, int64_t count) { return {t.data.begin(), t.data.begin() + count}; }

/// Of all that is compiled, whether this batch launches it or another.
std::set<std::string> sources_of(const Graph& body) {
  const Recorder all = emitted(place(body, {}));
  std::set<std::string> sources;
  for (const auto* drafts : {&all.drafts, &all.prepared}) {
    for (const KernelDraft& draft : *drafts) sources.insert(draft.source);
  }
  return sources;
}

TEST(Contraction, AMatrixOfFewRowsIsSummedWhole) {
  const auto stages = [](int64_t rows) {
    return emitted(place(plain(Matmul{64, 96, rows, true, false}, DType::bf16), {})).drafts.size();
  };
  EXPECT_EQ(stages(32), 1);
  EXPECT_EQ(stages(511), 1);
  EXPECT_EQ(stages(512), 2);
}

/// A body of one contraction, by batch.
struct OfBatch {
  const char* name;
  std::function<Graph(int64_t)> make;

  friend void PrintTo(const OfBatch& one, std::ostream* to) { *to << one.name; }
};

/// The results' outermost axis is the batch, or rows of it.
std::vector<OfBatch> by_image() {
  using ir::Op;
  return {
      {"fprop",
       [](int64_t n) {
         return block_end({Op::conv_fprop, n, 7, 7, 64, 32, 3, 3, 1, 1}, DType::bf16);
       }},
      {"fprop_f32",
       [](int64_t n) {
         return plain(Conv{Op::conv_fprop, n, 6, 5, 20, 36, 3, 3, 1, 1}, DType::f32);
       }},
      {"dgrad",
       [](int64_t n) {
         return plain(Conv{Op::conv_dgrad, n, 7, 8, 36, 20, 3, 3, 2, 1}, DType::bf16);
       }},
      {"pointwise",
       [](int64_t n) {
         return plain(Conv{Op::conv_fprop, n, 7, 7, 96, 24, 1, 1, 1, 0}, DType::bf16);
       }},
      {"linear",
       [](int64_t n) {
         return plain(Matmul{n, 96, 64, false, true}, DType::bf16);
       }},
      {"linear_gradient",
       [](int64_t n) {
         return plain(Matmul{n, 64, 96, false, false}, DType::f32);
       }},
      {"projection", [](int64_t n) { return projection(n, 8, 64, 96, DType::bf16); }},
  };
}
/// Sums over the batch.
std::vector<OfBatch> over_images() {
  return {
      {"wgrad",
       [](int64_t n) {
         return accumulated(Conv{ir::Op::conv_wgrad, n, 16, 16, 20, 36, 3, 3, 1, 1}, DType::bf16);
       }},
      {"linear_wgrad",
       [](int64_t n) {
         return plain(Matmul{96, 64, n, true, false}, DType::bf16);
       }},
      {"linear_wgrad_both",
       [](int64_t n) {
         return plain(Matmul{96, 64, n, true, true}, DType::bf16);
       }},
      {"whole_wgrad",
       [](int64_t n) {
         return plain(Matmul{1500, 1480, n, true, false}, DType::f32);
       }},
  };
}

class ContractionOfBatch : public ::testing::TestWithParam<OfBatch> {};

TEST_P(ContractionOfBatch, AnImageHasTheSameBitsInEveryBatch) {
  const Graph large = GetParam().make(13);
  const TensorMap from = random_inputs(large, false), want = run(large, from);
  for (const int64_t batch : {1, 3}) {
    const Graph small = GetParam().make(batch);
    TensorMap inputs;
    for (const auto& [name, tensor] : from) {
      const Type& type = small.type(small.find_input(name));
      inputs[name] = Tensor(type, head(tensor, type.elements()));
    }
    for (const auto& [name, tensor] : run(small, inputs)) {
      EXPECT_EQ(tensor.data, head(want.at(name), tensor.type.elements())) << "batch " << batch << ", output " << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ContractionOfBatch, ::testing::ValuesIn(by_image()),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(Contraction, CompilesOnceForAllBatches) {
  for (const std::vector<OfBatch>& list : {by_image(), over_images()}) {
    for (const OfBatch& problem : list) {
      const std::set<std::string> one = sources_of(problem.make(1));
      for (const int64_t batch : {2, 3, 13, 64, 3000}) {
        EXPECT_EQ(sources_of(problem.make(batch)), one) << problem.name << ", batch " << batch;
      }
    }
  }
}

TEST(ContractionTiles, NoneChangesABit) {
  const std::vector<Graph> bodies = {
      plain(Conv{ir::Op::conv_fprop, 1, 8, 9, 100, 48, 3, 3, 1, 1}, DType::bf16),
      plain(Conv{ir::Op::conv_dgrad, 1, 8, 9, 48, 36, 3, 3, 2, 1}, DType::f32),
      plain(Matmul{70, 1480, 200, false, false}, DType::bf16),
  };
  for (const Graph& body : bodies) {
    const Placed placed = place(body, {});
    const GemmProblem problem = gemm_problem(placed.spec);
    const TensorMap inputs = random_inputs(body, false);
    Tensor first;
    std::set<std::pair<int, int>> seen;
    for (const GemmTile& tile : candidates(problem, h100())) {
      // Stages and warps change no index that the others do not.
      if (!seen.emplace(tile.m * 1000 + tile.n, tile.k).second) continue;
      const Tensor got = run(body, inputs, {.tile = tile}).at("0");
      if (first.data.empty()) first = got;
      EXPECT_EQ(got.data, first.data) << to_string(problem) << ": " << to_string(tile);
    }
    EXPECT_GT(seen.size(), 5);
  }
}

TEST(Contraction, F32IsOneChainOfMultiplyAdds) {
  const auto at = [](const Tensor& t, bool transposed, int64_t row, int64_t column) {
    const int64_t columns = t.type.shape[1];
    return static_cast<float>(
        t.data[static_cast<size_t>(transposed ? column * columns + row : row * columns + column)]);
  };
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const Graph body = plain(Matmul{37, 70, 101, ta, tb}, DType::f32);
      const TensorMap inputs = random_inputs(body, false);
      const Tensor got = run(body, inputs).at("0");
      std::vector<double> want;
      for (int64_t m = 0; m < 37; ++m) {
        for (int64_t n = 0; n < 70; ++n) {
          float sum = 0;
          for (int64_t k = 0; k < 101; ++k)
            sum = std::fma(at(inputs.at("0"), ta, m, k), at(inputs.at("1"), tb, k, n), sum);
          want.push_back(sum);
        }
      }
      EXPECT_EQ(got.data, want) << ta << tb;
    }
  }
}

TEST(SlowContractionTiles, NoneSpills) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  const std::vector<Graph> bodies = {
      plain(Conv{ir::Op::conv_fprop, 2, 32, 32, 192, 320, 3, 3, 1, 1}, DType::f32),  // With offsets of 64 bits.
      plain(Conv{ir::Op::conv_fprop, 2, 32, 32, 192, 320, 3, 3, 1, 1}, DType::f32),
      block_end({ir::Op::conv_fprop, 2, 32, 32, 192, 128, 3, 3, 2, 1}, DType::f32),
      plain(Conv{ir::Op::conv_dgrad, 2, 32, 31, 128, 96, 3, 3, 2, 1}, DType::f32),
      plain(Matmul{70, 1480, 200, false, false}, DType::f32),
  };
  for (const Graph& body : bodies) {
    const Placed placed = place(body, {});
    GemmProblem problem = gemm_problem(placed.spec);
    problem.is_wide = &body == &bodies.front();
    for (const GemmTile& tile : candidates(problem, h100())) {
      const KernelDraft draft = product_kernel(placed.spec, problem, tile);
      for (const char* architecture : {"sm_80", "sm_90a"}) {
        const CompiledKernel kernel = nvrtc->compile(source_of(draft, architecture));
        EXPECT_EQ(kernel.log.find("warning"), std::string::npos) << to_string(problem) << to_string(tile) << kernel.log;
      }
    }
  }
}

TEST(ContractionTiles, FitEveryCard) {
  for (const Case& one : cases()) {
    Placed placed = place(one.body, one.setting);
    for (const ir::DeviceSpec& device : ir::known_devices()) {
      const KernelSpec& s = placed.spec;
      const KernelSpec spec{s.body, s.operands, s.alignment, s.results, s.result_alignment, "", 0, device, s.is_tf32};
      const GemmProblem problem = gemm_problem(spec);
      const std::vector<GemmTile> tiles = candidates(problem, device);
      EXPECT_FALSE(tiles.empty()) << one.name << " on " << device.name;
      for (const GemmTile& tile : tiles) EXPECT_LE(shared_bytes(problem, tile), device.shared_memory_bytes);
    }
  }
}

TEST(Contraction, RefusesWhatItCannotDo) {
  const auto body = [](const std::function<void(Builder&)>& write) {
    Graph made("body");
    Builder b(made);
    write(b);
    return made;
  };
  const Type image{DType::f32, {2, 4, 4, 8}}, filter{DType::f32, {8, 3, 3, 8}};
  EXPECT_TRUE(accepts_contraction(body([&](Builder& b) {
    b.graph().set_output("0", b.silu(b.conv_fprop(b.input("0", image), b.input("1", filter), 1, 1)));
  })));
  // A prologue, a reduction and a movement of its value, two contractions, none.
  EXPECT_FALSE(accepts_contraction(body([&](Builder& b) {
    b.graph().set_output("0", b.conv_fprop(b.silu(b.input("0", image)), b.input("1", filter), 1, 1));
  })));
  EXPECT_FALSE(accepts_contraction(body([&](Builder& b) {
    b.graph().set_output("0", b.reduce_sum(b.conv_fprop(b.input("0", image), b.input("1", filter), 1, 1), {1, 2}));
  })));
  EXPECT_FALSE(accepts_contraction(body([&](Builder& b) {
    b.graph().set_output("0", b.avg_pool(b.conv_fprop(b.input("0", image), b.input("1", filter), 1, 1)));
  })));
  EXPECT_FALSE(accepts_contraction(body([&](Builder& b) {
    const Value w = b.input("1", filter), y = b.conv_fprop(b.input("0", image), w, 1, 1);
    b.graph().set_output("0", b.conv_fprop(y, w, 1, 1));
  })));
  EXPECT_FALSE(accepts_contraction(body([&](Builder& b) { b.graph().set_output("0", b.silu(b.input("0", image))); })));
}

}  // namespace
}  // namespace difuse::codegen::cuda
