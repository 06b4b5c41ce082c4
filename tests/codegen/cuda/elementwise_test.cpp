// Elementwise bodies: their kernels compile, and run on the CPU they give what the reference gives.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/cuda/source/device_source.h"
#include "codegen/jit/nvrtc.h"
#include "ir/builder.h"
#include "tests/codegen/cuda/body_run.h"

namespace difuse::codegen::cuda {
namespace {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Shape;
using ir::Type;
using ir::Value;

/// Writes a body whose results have `shape`, batch included.
using Write = std::function<void(Builder&, const Shape&)>;

Graph body_of(const Shape& shape, const Write& write) {
  Graph body("body");
  Builder b(body);
  write(b, shape);
  return body;
}

void add_output(Builder& b, Value v) { b.graph().set_output(std::to_string(b.graph().outputs().size()), v); }

/// A normalise with scale, shift and SiLU: operands per image and channel, and per channel.
Write normalise(DType dtype = DType::bf16) {
  return [=](Builder& b, const Shape& shape) {
    const Type per_image{DType::f32, {shape[0], shape[3]}}, per_channel{DType::f32, {shape[3]}};
    const auto image = [&](const char* name) { return b.broadcast_image_channels(b.input(name, per_image), shape); };
    const auto channel = [&](const char* name) { return b.broadcast_channels(b.input(name, per_channel), shape); };
    const Value x = b.cast(b.input("0", {dtype, shape}), DType::f32);
    const Value scale = b.mul(image("2"), channel("3"));
    add_output(b, b.cast(b.silu(b.add(b.mul(b.sub(x, image("1")), scale), channel("4"))), dtype));
  };
}

/// Its gradient: two images in, one out and one kept in f32.
Write gradient() {
  return [](Builder& b, const Shape& shape) {
    const Type image{DType::bf16, shape}, per_image{DType::f32, {shape[0], shape[3]}};
    const Value x = b.cast(b.input("0", image), DType::f32), dy = b.cast(b.input("1", image), DType::f32);
    const Value mean = b.broadcast_image_channels(b.input("2", per_image), shape);
    const Value scale = b.broadcast_image_channels(b.input("3", per_image), shape);
    const Value z = b.mul(b.sub(x, mean), scale), s = b.sigmoid(z);
    const Value dz = b.mul(dy, b.mul(s, b.add(b.mul(z, b.add(b.neg(s), 1.0)), 1.0)));
    add_output(b, dz);
    add_output(b, b.cast(b.mul(dz, scale), DType::bf16));
  };
}

/// A bias per channel alone: the batch is among the rows.
Write bias(DType dtype = DType::f32) {
  return [=](Builder& b, const Shape& shape) {
    const Value c = b.broadcast(b.input("1", {DType::f32, {shape.back()}}), shape, {std::ssize(shape) - 1});
    add_output(b, b.cast(b.add(b.cast(b.input("0", {dtype, shape}), DType::f32), c), dtype));
  };
}

/// Statistics per image and group, with the channels of a group as the last dimension.
Write groups() {
  return [](Builder& b, const Shape& shape) {
    const Value mean = b.input("1", {DType::f32, {shape[0], shape[2]}});
    const Value gamma = b.input("2", {DType::f32, {shape[2], shape[3]}});
    const Value x = b.sub(b.input("0", {DType::f32, shape}), b.broadcast(mean, shape, {0, 2}));
    add_output(b, b.mul(x, b.broadcast(gamma, shape, {2, 3})));
  };
}

/// Repeated along other dimensions each: per image, per pixel, per row of pixels and channel, a scalar.
Write every_broadcast() {
  return [](Builder& b, const Shape& shape) {
    Value x = b.input("0", {DType::f32, shape});
    int next = 1;
    const auto repeat = [&](const std::vector<int64_t>& dims) {
      Shape own;
      for (const int64_t d : dims) own.push_back(shape[static_cast<size_t>(d)]);
      x = b.add(b.mul(x, 0.5), b.broadcast(b.input(std::to_string(next++), {DType::f32, own}), shape, dims));
    };
    for (const std::vector<int64_t>& dims : std::vector<std::vector<int64_t>>{{0}, {1, 2}, {1, 3}, {}, {0, 3}, {3}}) {
      repeat(dims);
    }
    add_output(b, x);
  };
}

/// What is repeated is computed here, of a part of a longer vector too; the image is two, one behind the other.
Write joined_images() {
  return [](Builder& b, const Shape& shape) {
    const int64_t channels = shape[3];
    const auto half = [&](const char* name) {
      return b.input(name, {DType::bf16, {shape[0], shape[1], shape[2], channels / 2}});
    };
    const Value x = b.cast(b.concat({half("0"), half("1")}, 3), DType::f32);
    const Value scale_shift = b.input("2", {DType::f32, {shape[0], 2 * channels}});
    const Value gamma = b.broadcast(b.input("3", {DType::f32, {channels}}), {shape[0], channels}, {1});
    const Value scale = b.mul(gamma, b.add(b.slice(scale_shift, 1, 0, channels), 1.0));
    const Value shift = b.slice(scale_shift, 1, channels, 2 * channels);
    const Value y = b.add(b.mul(x, b.broadcast_image_channels(scale, shape)), b.broadcast_image_channels(shift, shape));
    add_output(b, b.cast(b.silu(y), DType::bf16));
  };
}

/// A number per image, read through a slice of what repeats it.
Write sliced_scale() {
  return [](Builder& b, const Shape& shape) {
    Shape wide = shape;
    wide[3] *= 2;
    const Value scale = b.broadcast(b.input("1", {DType::f32, {shape[0]}}), wide, {0});
    const Value x = b.cast(b.input("0", {DType::bf16, shape}), DType::f32);
    add_output(b, b.mul(x, b.slice(scale, 3, 0, shape[3])));
  };
}

/// An image of bytes, scaled per channel.
Write bytes() {
  return [](Builder& b, const Shape& shape) {
    const Value x = b.cast(b.input("0", {DType::u8, shape}), DType::f32);
    add_output(b, b.mul(x, b.broadcast_channels(b.input("1", {DType::f32, {shape.back()}}), shape)));
  };
}

struct Case {
  const char* name;
  Shape shape;
  Write write;

  friend void PrintTo(const Case& one, std::ostream* to) { *to << one.name; }
};

std::vector<Case> cases() {
  return {
      {"normalise", {3, 16, 16, 64}, normalise()},
      {"normalise_8x8", {2, 8, 8, 256}, normalise()},
      {"normalise_7x7", {3, 7, 7, 72}, normalise()},
      {"normalise_odd_channels", {2, 9, 5, 33}, normalise()},
      {"normalise_three_channels", {2, 31, 17, 3}, normalise()},
      {"normalise_one_channel", {2, 12, 12, 1}, normalise()},
      {"normalise_one_pixel", {5, 1, 1, 64}, normalise()},
      {"normalise_ragged_tiles", {2, 5, 7, 88}, normalise()},
      {"normalise_f16", {2, 6, 6, 40}, normalise(DType::f16)},
      {"normalise_f32", {2, 6, 6, 40}, normalise(DType::f32)},
      {"gradient", {3, 16, 16, 64}, gradient()},
      {"gradient_odd", {2, 9, 5, 33}, gradient()},
      {"bias", {37, 100}, bias()},
      {"bias_bf16", {2, 9, 9, 64}, bias(DType::bf16)},
      {"bias_one_row", {1, 40}, bias()},
      {"groups", {2, 64, 8, 4}, groups()},
      {"groups_of_three", {2, 49, 5, 3}, groups()},
      {"every_broadcast", {2, 6, 20, 24}, every_broadcast()},
      {"every_broadcast_odd", {3, 17, 5, 7}, every_broadcast()},
      {"joined_images", {2, 8, 8, 64}, joined_images()},
      {"joined_images_odd", {2, 5, 5, 36}, joined_images()},
      {"sliced_scale", {2, 64, 64, 64}, sliced_scale()},
  };
}

/// A card so small that its threads have several rows each.
ir::DeviceSpec small_card() {
  ir::DeviceSpec card = h100();
  card.processors = 1;
  return card;
}

struct Run {
  Recorder recorder;
  ir::TensorMap results;
};
Run run(const Graph& body, const ir::TensorMap& inputs, const Places& places, const ir::DeviceSpec& card) {
  EXPECT_TRUE(accepts_elementwise(body));
  const Placed placed = place(body, places, card);
  Run run;
  emit_elementwise(placed.spec, run.recorder);
  run.results = run_drafts(placed, run.recorder, inputs, "sm_80");
  return run;
}

void expect_reference(const Graph& body, const Places& places = {}, const ir::DeviceSpec& card = h100()) {
  const ir::TensorMap inputs = random_inputs(body, false);
  cuda::expect_reference(body, inputs, run(body, inputs, places, card).results, false);
}

class ElementwiseCase : public ::testing::TestWithParam<Case> {};

TEST_P(ElementwiseCase, AgreesWithTheReference) { expect_reference(body_of(GetParam().shape, GetParam().write)); }

TEST_P(ElementwiseCase, CompilesWithoutSpills) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  const Graph body = body_of(GetParam().shape, GetParam().write);
  Recorder recorder;
  emit_elementwise(place(body, {}, h100()).spec, recorder);
  for (const KernelDraft& draft : recorder.drafts) expect_compiles(*nvrtc, draft, {"sm_80", "sm_90a"});
}

INSTANTIATE_TEST_SUITE_P(All, ElementwiseCase, ::testing::ValuesIn(cases()),
                         [](const auto& one) { return std::string(one.param.name); });

TEST(Elementwise, AThreadMayHaveSeveralRows) {
  for (const Case& one : std::vector<Case>{{"even", {2, 64, 64, 64}, normalise()},
                                           {"tail", {3, 45, 31, 40}, normalise()},
                                           {"gradient", {2, 33, 31, 36}, gradient()},
                                           {"f16", {2, 33, 31, 40}, normalise(DType::f16)},
                                           {"bytes", {2, 33, 31, 40}, bytes()},
                                           {"joined", {2, 33, 31, 40}, joined_images()},
                                           {"with the batch", {5001, 100}, bias()}}) {
    SCOPED_TRACE(one.name);
    const Graph body = body_of(one.shape, one.write);
    expect_reference(body, {}, small_card());
    // The rows of a thread are not in the source.
    Recorder few, many;
    emit_elementwise(place(body, {}, h100()).spec, few);
    emit_elementwise(place(body, {}, small_card()).spec, many);
    EXPECT_EQ(few.drafts[0].source, many.drafts[0].source);
    EXPECT_GT(few.drafts[0].grid.x, many.drafts[0].grid.x);
  }
}

TEST(Elementwise, WhatRowsShareIsReadBeforeTheirLoop) {
  Recorder recorder;
  const Graph body = body_of({32, 64, 64, 64}, normalise());
  emit_elementwise(place(body, {}, h100()).spec, recorder);
  const std::string& source = recorder.drafts[0].source;
  const std::string kernel = source.substr(source.rfind("__global__"));
  for (const char* shared : {"load_held<8>(p1", "load_held<8>(p2", "load_held<8>(p3", "load_held<8>(p4"}) {
    EXPECT_LT(kernel.find(shared), kernel.find("for (; r")) << shared;
    EXPECT_EQ(kernel.find(shared), kernel.rfind(shared)) << shared;
  }
}

TEST(Elementwise, ARowsLoadsBeginBeforeAnEarlierOneIsComputed) {
  Recorder recorder;
  const Graph body = body_of({32, 64, 64, 64}, normalise());
  emit_elementwise(place(body, {}, h100()).spec, recorder);
  const std::string& source = recorder.drafts[0].source;
  const std::string loop = source.substr(source.rfind("for (; r"));
  EXPECT_LT(loop.find("load_row(u, row + "), loop.find("op::")) << loop;
  EXPECT_LT(loop.find("load_row(u, row + "), loop.find("store_run")) << loop;
}

TEST(Elementwise, EveryProcessorHasABlock) {
  for (const Shape& shape : {Shape{32, 8, 8, 256}, Shape{32, 64, 64, 64}, Shape{32, 16, 16, 192}}) {
    Recorder recorder;
    const Graph body = body_of(shape, normalise());
    emit_elementwise(place(body, {}, h100()).spec, recorder);
    EXPECT_GE(recorder.drafts[0].grid.x, 2 * h100().processors);
  }
}

TEST(Elementwise, OperandsNeedNotBeAligned) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    expect_reference(body_of(one.shape, one.write), {.alignment = 4});
  }
}

TEST(Elementwise, ResultsMayOverwriteOperands) {
  const Graph forward = body_of({3, 9, 9, 40}, normalise()), backward = body_of({2, 9, 9, 40}, gradient());
  for (const ir::DeviceSpec& card : {h100(), small_card()}) {
    expect_reference(forward, {.in_place = {{0, 0}}}, card);
    for (const int operand : {0, 1}) expect_reference(backward, {.in_place = {{1, operand}}}, card);
  }
}

TEST(Elementwise, WhatNobodyReadsIsNotStored) {
  const Graph body = body_of({2, 9, 9, 40}, gradient());
  for (const int unwanted : {0, 1}) expect_reference(body, {.unwanted = {unwanted}});
}

TEST(Elementwise, AnImageAloneGivesTheSameBits) {
  const Graph batch = body_of({3, 17, 9, 40}, normalise()), single = body_of({1, 17, 9, 40}, normalise());
  // The first images of a batch are a smaller batch's (random_inputs).
  const auto all = run(batch, random_inputs(batch, false), {}, small_card()).results.at("0");
  const auto one = run(single, random_inputs(single, false), {}, h100()).results.at("0");
  EXPECT_TRUE(std::equal(one.data.begin(), one.data.end(), all.data.begin()));
}

/// An image of bytes with noise, which is a result as well, both scaled per image.
Graph noisy(const Shape& image) {
  return body_of(image, [](Builder& b, const Shape& shape) {
    const Value index = b.input("2", {DType::i32, {shape[0]}}), step = b.input("3", {DType::i32, {}});
    const Value scale = b.broadcast(b.input("4", {DType::f32, {shape[0]}}), shape, {0});
    const Value noise =
        b.random_normal(b.input("1", {DType::u32, {2}}), index, step, /*stream=*/5, {shape.begin() + 1, shape.end()});
    const Value x = b.mul(b.cast(b.input("0", {DType::u8, shape}), DType::f32), scale);
    add_output(b, b.cast(b.add(x, b.mul(noise, scale)), DType::bf16));
    add_output(b, noise);
  });
}

ir::TensorMap noisy_inputs(const Graph& body) {
  ir::TensorMap inputs = random_inputs(body, false);
  inputs.at("1").data = {4000000007.0, 12345};
  inputs.at("3").data = {17};
  std::vector<double>& index = inputs.at("2").data;
  for (size_t i = 0; i < index.size(); ++i) index[i] = 3.0 * static_cast<double>(i) + 1;
  return inputs;
}

TEST(Elementwise, DrawsAreOfTheirSampleWhateverTheRun) {
  // Runs of eight in samples whose rows are shorter, of one in odd samples, rows that are whole runs.
  for (const Shape& shape : {Shape{3, 8, 8, 3}, Shape{2, 5, 7, 3}, Shape{2, 4, 4, 24}, Shape{3, 40}, Shape{5, 7}}) {
    SCOPED_TRACE(ir::to_string(shape));
    const Graph body = noisy(shape);
    const ir::TensorMap inputs = noisy_inputs(body);
    for (const int64_t alignment : {256, 4})
      cuda::expect_reference(body, inputs, run(body, inputs, {.alignment = alignment}, h100()).results, false);
  }
}

TEST(Elementwise, NeighboursShareTheirWords) {
  Recorder recorder;
  emit_elementwise(place(noisy({32, 64, 64, 3}), {}, h100()).spec, recorder);
  const std::string& source = recorder.drafts[0].source;
  const std::string kernel = source.substr(source.rfind("__global__"));
  const size_t loop = kernel.find("for (int l = 0; l < 8");
  ASSERT_NE(loop, std::string::npos) << kernel;
  EXPECT_LT(kernel.rfind("block_of("), loop) << kernel;
}

TEST(Elementwise, TheBatchIsNotInTheSource) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.name);
    std::set<std::string> sources;
    for (const int64_t batch : {1, 3, 64}) {
      Shape shape = one.shape;
      shape[0] *= batch;
      const Graph body = body_of(shape, one.write);
      Recorder recorder;
      emit_elementwise(place(body, {}, h100()).spec, recorder);
      sources.insert(recorder.drafts[0].source);
    }
    EXPECT_EQ(sources.size(), 1u);
  }
}

TEST(Elementwise, LargeTensorsHaveLongIndices) {
  const Graph body = body_of({40000, 64, 64, 64}, normalise());
  Recorder recorder;
  emit_elementwise(place(body, {}, h100()).spec, recorder);
  EXPECT_NE(recorder.drafts[0].source.find("using index_t = long long"), std::string::npos);
  if (const auto nvrtc = NvrtcLibrary::load()) expect_compiles(*nvrtc, recorder.drafts[0], {"sm_90a"});
}

/// sigmoid and silu of every `x`, as device/ops.cuh computes them.
struct Sigmoid {
  std::vector<float> sigmoid, silu;
};
Sigmoid sigmoid_of(const std::vector<float>& x) {
  Sigmoid y{std::vector<float>(x.size()), std::vector<float>(x.size())};
  const CudaSource source{"kernel",
                          device_source({"ops.cuh"}) + R"(
extern "C" __global__ void __launch_bounds__(256) kernel(const float* x, float* y, float* z, long long count) {
  for (long long i = threadIdx.x; i < count; i += 256) {
    y[i] = op::sigmoid(x[i]);
    z[i] = op::silu(x[i]);
  }
})",
                          "sm_80",
                          {}};
  const std::vector<uint64_t> arguments = {reinterpret_cast<uint64_t>(x.data()),
                                           reinterpret_cast<uint64_t>(y.sigmoid.data()),
                                           reinterpret_cast<uint64_t>(y.silu.data()), x.size()};
  difuse::testing::EmulatedKernel::build(source).launch({1, 1, 1}, 256, 0, arguments);
  return y;
}

TEST(Sigmoid, IsAsExactAsItSays) {
  std::vector<float> x;
  for (uint32_t bits = 0; bits < 0x43000000u; bits += 0x1003) {  // up to 128 in magnitude, of both signs
    x.push_back(std::bit_cast<float>(bits));
    x.push_back(-x.back());
  }
  const Sigmoid y = sigmoid_of(x);
  // The emulator rounds 2^x and 1/x to nearest; instructions may be another 2 ulp (2^-22) and 1 ulp (2^-23) away.
  for (size_t i = 0; i < x.size(); ++i) {
    const double exact = 1 / (1 + std::exp(-static_cast<double>(x[i]))), size = std::abs(static_cast<double>(x[i]));
    const double error = std::abs(static_cast<double>(y.sigmoid[i]) - exact);
    ASSERT_LE(error, 0x1p-23) << x[i];
    if (x[i] >= -1) {
      ASSERT_LE(error, exact * 0x1p-22) << x[i];
    } else if (x[i] > -87.3F) {
      ASSERT_LE(error, exact * (0x1p-23 + size * 0x1p-23)) << x[i];
    } else {
      ASSERT_LE(y.sigmoid[i], 0x1p-125F) << x[i];
    }
    ASSERT_LE(std::abs(static_cast<double>(y.silu[i]) - static_cast<double>(x[i]) * exact),
              size * (error + exact * 0x1p-24) + 0x1p-126)
        << x[i];
  }
}

TEST(Sigmoid, IsQuickOnlyBesideNumbersOf16Bits) {
  const auto source = [](DType stored) {
    const Graph body = body_of({40, 64}, [&](Builder& b, const Shape& shape) {
      add_output(b, b.cast(b.silu(b.sigmoid(b.input("0", {DType::f32, shape}))), stored));
    });
    expect_reference(body);
    Recorder recorder;
    emit_elementwise(place(body, {}, h100()).spec, recorder);
    return recorder.drafts.front().source;
  };
  const std::string exact = source(DType::f32), quick = source(DType::bf16);
  EXPECT_NE(exact.find("= op::exact_sigmoid("), std::string::npos);
  EXPECT_NE(exact.find("= op::exact_silu("), std::string::npos);
  EXPECT_NE(quick.find("= op::sigmoid("), std::string::npos);
  EXPECT_EQ(quick.find("= op::exact_"), std::string::npos);
}

TEST(Sigmoid, HasNoFalseNaN) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const Sigmoid y = sigmoid_of({-200.0F, 200.0F, 0.0F, -0.0F, -1e30F, 3e38F, inf, -inf, nan, 1e-44F});
  EXPECT_EQ(y.sigmoid[0], 0.0F);
  EXPECT_EQ(y.silu[0], 0.0F);
  EXPECT_TRUE(std::signbit(y.silu[0]));
  EXPECT_EQ(y.sigmoid[1], 1.0F);
  EXPECT_EQ(y.silu[1], 200.0F);
  EXPECT_EQ(y.sigmoid[2], 0.5F);
  EXPECT_EQ(y.sigmoid[3], 0.5F);
  EXPECT_TRUE(std::signbit(y.silu[3]));
  EXPECT_EQ(y.sigmoid[4], 0.0F);
  EXPECT_EQ(y.silu[4], 0.0F);
  EXPECT_EQ(y.silu[5], 3e38F);
  EXPECT_EQ(y.sigmoid[6], 1.0F);
  EXPECT_EQ(y.silu[6], inf);
  EXPECT_EQ(y.sigmoid[7], 0.0F);
  EXPECT_TRUE(std::isnan(y.silu[7]));  // as -inf / (1 + inf) is
  EXPECT_TRUE(std::isnan(y.sigmoid[8]));
  EXPECT_EQ(y.sigmoid[9], 0.5F);
}

}  // namespace
}  // namespace difuse::codegen::cuda
