#include "codegen/cpu/kernels/register_ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ir/error.h"
#include "ir/op.h"
#include "ir/reference.h"

namespace difuse::codegen::cpu {
namespace {

using ir::DType;
using ir::Op;

float as_block(double number, DType dtype) {
  if (dtype != DType::i32 && dtype != DType::u32) return static_cast<float>(number);
  const auto bits = static_cast<uint32_t>(static_cast<int64_t>(number));
  float f;
  std::memcpy(&f, &bits, sizeof(f));
  return f;
}
double from_block(float f, DType dtype) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof(bits));
  if (dtype == DType::i32) return static_cast<int32_t>(bits);
  if (dtype == DType::u32) return bits;
  return static_cast<double>(f);
}

TEST(RegisterOps, CastsAsTheReferenceRounds) {
  const std::vector<double> numbers = {0,     1,        255,        256,         300,          -1,
                                       65504, 16777217, 2147483647, 4294967295., -2147483648., 33554433};
  for (DType from : {DType::f32, DType::i32, DType::u32, DType::u8}) {
    for (DType to : {DType::f32, DType::bf16, DType::f16, DType::i32, DType::u32, DType::u8}) {
      const ElementwiseKernel kernel = cast_kernel(from, to);
      for (double x : numbers) {
        x = from == DType::f32 ? ir::round_to(x, from) : x;
        if (ir::round_to(x, from) != x) continue;
        const float in = as_block(x, from);
        const float* const operands[] = {&in};
        float out = in;
        if (kernel != nullptr) kernel(operands, &out, 1);
        EXPECT_EQ(from_block(out, to), ir::round_to(x, to)) << x << " " << to_string(from) << " -> " << to_string(to);
      }
    }
  }
}

TEST(RegisterOps, IntegersAreExactInEveryScalarForm) {
  const double a[] = {16777217, -3, 2113929213}, b[] = {16777216, 7, 1};
  const std::vector<std::pair<Op, double (*)(double, double)>> ops = {
      {Op::add, [](double x, double y) { return x + y; }},
      {Op::sub, [](double x, double y) { return x - y; }},
      {Op::min, [](double x, double y) { return std::min(x, y); }},
      {Op::max, [](double x, double y) { return std::max(x, y); }},
      {Op::less, [](double x, double y) { return x < y ? 1.0 : 0.0; }},
      {Op::less_equal, [](double x, double y) { return x <= y ? 1.0 : 0.0; }},
      {Op::equal, [](double x, double y) { return x == y ? 1.0 : 0.0; }}};
  float in_a[3], in_b[3], out[3];
  for (int i = 0; i < 3; ++i) in_a[i] = as_block(a[i], DType::i32), in_b[i] = as_block(b[i], DType::i32);
  const float* const operands[] = {in_a, in_b};
  for (const auto& [op, want] : ops) {
    const bool compares = op == Op::less || op == Op::less_equal || op == Op::equal;
    for (unsigned scalars = 0; scalars < 4; ++scalars) {
      elementwise_kernel(op, DType::i32, scalars)(operands, out, 3);
      for (int i = 0; i < 3; ++i) {
        const double expected = want(a[scalars & 1 ? 0 : i], b[scalars & 2 ? 0 : i]);
        EXPECT_EQ(from_block(out[i], compares ? DType::f32 : DType::i32), expected) << to_string(op) << " " << scalars;
      }
    }
  }
}

TEST(RegisterOps, WhatDoesNotExistIsAnError) { EXPECT_THROW(elementwise_kernel(Op::exp, DType::i32, 0), Error); }

}  // namespace
}  // namespace difuse::codegen::cpu
