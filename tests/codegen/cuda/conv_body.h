// Bodies of convolutions with what may come before and after them, and what Hopper's engines make of them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "codegen/cuda/kernel_spec.h"
#include "codegen/jit/nvrtc.h"
#include "ir/builder.h"
#include "ir/op.h"
#include "ir/strips.h"
#include "tests/codegen/cuda/body_run.h"

namespace difuse::codegen::cuda {

using ir::Builder;
using ir::DType;
using ir::Graph;
using ir::Shape;
using ir::Type;
using ir::Value;

struct Shapes {
  int64_t n, h, w, c, k;
  int64_t taps = 3, pad = 1;
  bool is_turned = false;     ///< conv_dgrad: c are the gradient's channels, k the image's.
  DType dtype = DType::bf16;  ///< Of images and filters.
  int64_t stride = 1;         ///< Of a conv_fprop.
};

enum class After : uint8_t { nothing, bias, time, residual, all, masked, parts };
/// What is done with the image before it is multiplied: a normalise and a SiLU, or less.
enum class Before : uint8_t { nothing, scale, normalise, finish };

/// The operands' inputs are numbered from `inputs` on; `stored` are results too.
inline Value prologue(Builder& b, Value image, Before before, int& inputs, std::vector<Value>& stored) {
  const Shape shape = b.shape(image);
  const auto input = [&](DType dtype, const Shape& of) { return b.input(std::to_string(inputs++), {dtype, of}); };
  if (before == Before::nothing) return image;
  Value x = b.cast(image, DType::f32);
  if (before == Before::scale) {  // Of the channel alone, in bf16; a zero does not stay one.
    const Value by = b.cast(b.broadcast_channels(input(DType::bf16, {shape[3]}), shape), DType::f32);
    return b.cast(b.add(b.sigmoid(x), by), DType::bf16);
  }
  const Shape rows = {shape[0], shape[3]};
  Value mean, rstd;
  if (before == Before::finish) {  // Of the strips' statistics, which others read too.
    const Shape parts = {shape[0], ir::Strips{shape[1], shape[2]}.count(), shape[3]};
    const Value strip_mean = input(DType::f32, parts), strip_m2 = input(DType::f32, parts);
    const auto made = b.group_finish({{strip_mean, strip_m2}}, {4, 0.5, shape[1], shape[2]});
    mean = made.mean, rstd = made.rstd;
    stored = {mean, rstd};
  } else {
    mean = input(DType::f32, rows), rstd = input(DType::f32, rows);
  }
  x = b.sub(x, b.broadcast_image_channels(mean, shape));
  x = b.mul(x, b.broadcast_image_channels(rstd, shape));
  const Value scale = b.add(b.broadcast_channels(input(DType::f32, {shape[3]}), rows), input(DType::f32, rows));
  x = b.add(b.mul(x, b.broadcast_image_channels(scale, shape)),
            b.broadcast_channels(input(DType::f32, {shape[3]}), shape));
  return b.cast(b.silu(x), DType::bf16);
}

/// `first`: channels of the first image where there are two.
inline Graph conv(const Shapes& s, After after = After::nothing, Before before = Before::nothing, int64_t first = 0) {
  Graph body("body");
  Builder b(body);
  int inputs = 2;
  Value image = b.input("0", {s.dtype, {s.n, s.h, s.w, first > 0 ? first : s.c}});
  if (first > 0) {
    const Value more = b.input(std::to_string(inputs++), {s.dtype, {s.n, s.h, s.w, s.c - first}});
    image = b.concat({image, more}, 3);
  }
  std::vector<Value> stored;
  image = prologue(b, image, before, inputs, stored);
  const int64_t border = s.taps - 1 - s.pad;
  Value x = s.is_turned ? b.conv_dgrad(image, b.input("1", {s.dtype, {s.c, s.taps, s.taps, s.k}}),
                                       {1, border, s.h + s.taps - 1 - 2 * border, s.w + s.taps - 1 - 2 * border})
                        : b.conv_fprop(image, b.input("1", {s.dtype, {s.k, s.taps, s.taps, s.c}}), s.stride, s.pad);
  const Shape shape = b.shape(x);
  const auto input = [&](const Type& type) { return b.input(std::to_string(inputs++), type); };
  const bool all = after == After::all;
  if (all || after == After::bias) x = b.add(x, b.broadcast_channels(input({DType::f32, {s.k}}), shape));
  if ((all && s.taps > 1) || after == After::time)
    x = b.add(x, b.broadcast_image_channels(input({DType::f32, {s.n, s.k}}), shape));
  if (after == After::parts) {  // A row of each image has a scale and a shift.
    const Value row = input({DType::f32, {s.n, 2 * s.k}});
    const auto part = [&](int64_t i) {
      return b.broadcast_image_channels(b.slice(row, 1, i * s.k, (i + 1) * s.k), shape);
    };
    x = b.add(b.mul(x, part(0)), part(1));
  }
  const bool masked = after == After::masked;  // By bytes, beside a residual.
  if (all || masked || after == After::residual) x = b.add(b.cast(input({s.dtype, shape}), DType::f32), x);
  if (masked) x = b.mul(x, b.cast(input({DType::u8, shape}), DType::f32));
  if (all) x = b.silu(x);
  body.set_output("0", b.cast(x, s.dtype));
  for (size_t i = 0; i < stored.size(); ++i) body.set_output(std::to_string(i + 1), stored[i]);
  return body;
}

inline Recorder emitted(const Placed& placed) {
  EXPECT_TRUE(accepts_conv_wgmma(placed.spec));
  Recorder recorder;
  emit_conv_wgmma(placed.spec, recorder);
  return recorder;
}

inline ir::TensorMap run(const Graph& body, const ir::TensorMap& inputs, const Places& places = {}) {
  const Placed placed = place(body, places, h100());
  return run_drafts(placed, emitted(placed), inputs, "sm_90a");
}

struct ConvCase {
  std::string name;
  Graph body;
  Places places = {};

  friend void PrintTo(const ConvCase& one, std::ostream* to) { *to << one.name; }
};

inline void expect_agrees_with_the_reference(const ConvCase& one) {
  const ir::TensorMap inputs = random_inputs(one.body, one.places.tf32);
  expect_reference(one.body, inputs, run(one.body, inputs, one.places), one.places.tf32);
}

inline void expect_compiles_without_spills(const ConvCase& one) {
  const auto nvrtc = NvrtcLibrary::load();
  if (!nvrtc) GTEST_SKIP() << "no NVRTC";
  const Placed placed = place(one.body, one.places, h100());
  for (const KernelDraft& draft : emitted(placed).drafts) expect_compiles(*nvrtc, draft, {"sm_90a"});
}

/// `make` gives a body for so many images.
inline void expect_same_bits_in_every_batch_from_one_source(const std::function<Graph(int64_t n)>& make,
                                                            const Places& places = {}) {
  const Graph large = make(9);
  const ir::TensorMap from = random_inputs(large, places.tf32), want = run(large, from, places);
  const std::string source = emitted(place(large, places, h100())).drafts.front().source;
  const auto head = [](const ir::Tensor& t, int64_t count) {
    return std::vector<double>{t.data.begin(), t.data.begin() + count};
  };
  for (const int64_t batch : {1, 4}) {
    const Graph small = make(batch);
    EXPECT_EQ(emitted(place(small, places, h100())).drafts.front().source, source);
    ir::TensorMap inputs;
    for (const auto& [name, tensor] : from) {
      const Type& type = small.type(small.find_input(name));
      inputs[name] = ir::Tensor(type, head(tensor, type.elements()));
    }
    const ir::Tensor got = run(small, inputs, places).at("0");
    EXPECT_EQ(got.data, head(want.at("0"), got.type.elements())) << "batch " << batch;
  }
}

}  // namespace difuse::codegen::cuda
