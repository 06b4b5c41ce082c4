// Numbers for attention's kernels on Hopper, and how near to the reference they must come.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <ostream>
#include <random>
#include <string>

#include "ir/builder.h"
#include "ir/reference.h"
#include "tests/codegen/cuda/body_run.h"

namespace difuse::codegen::cuda {

/// One attention, and its gradient, of bf16 rows.
struct AttentionCase {
  int64_t length, heads, width;
  ir::QkvOrder order = ir::QkvOrder::heads_first;
  int64_t images = 1, alignment = 256;

  friend void PrintTo(const AttentionCase& c, std::ostream* to) { *to << c.name(); }
  std::string name() const { return fmt::format("l{}_h{}_w{}_{}", length, heads, width, ir::to_string(order)); }

  ir::Type qkv(ir::DType dtype = ir::DType::bf16) const { return {dtype, {images, length, 3 * heads * width}}; }
  ir::Type out(ir::DType dtype = ir::DType::bf16) const { return {dtype, {images, length, heads * width}}; }
  ir::AttentionAttrs attrs() const { return {heads, order}; }

  ir::Graph forward(ir::DType dtype = ir::DType::bf16) const {
    ir::Graph body("body");
    ir::Builder b(body);
    const auto a = b.attention(b.input("0", qkv(dtype)), attrs());
    body.set_output("0", b.cast(a.out, ir::DType::bf16));
    body.set_output("1", a.lse);
    body.set_output("2", a.out);
    return body;
  }
  ir::Graph gradient(ir::DType dout = ir::DType::bf16, bool is_scaled = false) const {
    ir::Graph body("body");
    ir::Builder b(body);
    const ir::Value x = b.input("0", qkv()), y = b.input("1", out());
    const ir::Value log_sum = b.input("2", {ir::DType::f32, {images, heads, length}});
    const ir::Value dqkv = b.attention_grad(x, y, log_sum, b.input("3", out(dout)), attrs());
    body.set_output("0", b.cast(dqkv, ir::DType::bf16));
    body.set_output("1", is_scaled ? b.mul(dqkv, b.input("4", qkv(ir::DType::f32))) : dqkv);
    return body;
  }
  /// The same, times an operand.
  ir::Graph scaled_forward() const {
    ir::Graph body("body");
    ir::Builder b(body);
    const ir::Value y = b.attention(b.input("0", qkv()), attrs()).out;
    body.set_output("0", b.cast(b.mul(y, b.input("1", out(ir::DType::f32))), ir::DType::bf16));
    return body;
  }
};

constexpr double kRoundedProbabilities = 6e-3;

inline ir::Tensor normal_tensor(const ir::Type& type, uint64_t seed, double scale = 1, double shift_of_keys = 0,
                                int64_t width = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0.1, scale);
  ir::Tensor t(type);
  for (size_t i = 0; i < t.data.size(); ++i) {
    const auto part = static_cast<int64_t>(i) / width % 3;
    t.data[i] = ir::round_to(normal(random) + (part == 0 ? shift_of_keys : part == 1 ? -shift_of_keys : 0), type.dtype);
  }
  return t;
}

inline ir::Tensor rounded_to(ir::Tensor t, ir::DType dtype) {
  for (double& x : t.data) x = ir::round_to(x, dtype);
  t.type.dtype = dtype;
  return t;
}

/// What the reference's forward leaves for the gradient.
inline ir::TensorMap gradient_inputs(const AttentionCase& c, const ir::Tensor& qkv) {
  ir::TensorMap forward = ir::run_reference(c.forward(), {{"0", qkv}}, {}).outputs;
  return {{"0", qkv},
          {"1", forward.at("0")},
          {"2", rounded_to(forward.at("1"), ir::DType::f32)},
          {"3", normal_tensor(c.out(), 3)}};
}

/// Probabilities and scores' gradients are rounded to 8 bits.
inline void expect_near_reference(const ir::Graph& body, const ir::TensorMap& inputs, const ir::TensorMap& got,
                                  double most) {
  const ir::TensorMap want = ir::run_reference(body, inputs, {}).outputs;
  for (const auto& [name, tensor] : got) {
    const double allowed = tensor.type.dtype == ir::DType::bf16 ? std::max(most, 8e-3) : most;
    EXPECT_LE(ir::relative_error(tensor.data, want.at(name).data), allowed) << "output " << name;
  }
}

}  // namespace difuse::codegen::cuda
