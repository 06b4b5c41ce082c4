// Numbers for attention's kernels on Hopper, and how near to the reference they must come.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>

#include "ir/reference.h"
#include "tests/codegen/cuda/body_run.h"

namespace difuse::codegen::cuda {

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

/// What the reference's forward leaves for the gradient of a case with `forward()` and `out()`.
template <class Case>
ir::TensorMap gradient_inputs(const Case& c, const ir::Tensor& qkv) {
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
