#include "codegen/cpu/plain.h"

#include <gtest/gtest.h>

#include "contraction_checks.h"
#include "ir/error.h"

namespace difuse::codegen {
namespace {

using namespace testing;

TEST(Plain, ConvolutionsMatchTheDefinition) {
  const PlainContractions plain;
  each_conv([&](ConvKind kind, const ConvProblem& problem) {
    EXPECT_LE(conv_error(plain, kind, problem), 1e-5) << name(kind, problem);
  });
}

TEST(Plain, MatrixProductsMatchTheDefinition) {
  const PlainContractions plain;
  for (const MatmulProblem& problem : matmul_problems()) {
    EXPECT_LE(matmul_error(plain, problem), 1e-5) << problem.m << " " << problem.n << " " << problem.k << " "
                                                  << problem.transpose_a << problem.transpose_b << problem.accumulate;
  }
}

TEST(Plain, EveryInstructionSetGivesTheSameBits) {
  const ConvProblem problem{2, 14, 11, 20, 33, 3, 3, 2, 1};
  for (const ConvKind kind : {ConvKind::fprop, ConvKind::dgrad, ConvKind::wgrad}) {
    const Buffer first = random_buffer(sizes(kind, problem).first, 1);
    const Buffer second = random_buffer(sizes(kind, problem).second, 2);
    const auto run = [&](Isa isa) {
      return run_plain_operands(*PlainContractions(isa).conv(kind, problem), kind, problem, first, second);
    };
    const Buffer expected = run(Isa::baseline);
    for (int isa = 1; isa <= static_cast<int>(best_isa()); ++isa) {
      const Buffer got = run(static_cast<Isa>(isa));
      EXPECT_EQ(std::memcmp(got.data(), expected.data(), expected.size() * sizeof(float)), 0) << isa;
    }
  }
}

TEST(Plain, ReadsBackPackedWeights) {
  const ConvProblem problem{1, 8, 8, 20, 33, 3, 3, 1, 1};
  for (const ConvKind kind : {ConvKind::fprop, ConvKind::dgrad, ConvKind::wgrad}) {
    const auto conv = PlainContractions().conv(kind, problem);
    const Buffer weights = random_buffer(static_cast<size_t>(problem.weight_count()), 1);
    const Buffer packed(conv->weights_bytes() / sizeof(float)), scratch(conv->scratch_bytes() / sizeof(float) + 1);
    const Buffer back(weights.size());
    conv->pack(weights.data(), packed.data(), scratch.bytes());
    conv->unpack(packed.data(), back.data(), scratch.bytes());
    EXPECT_EQ(std::memcmp(weights.data(), back.data(), weights.size() * sizeof(float)), 0);
  }
}

TEST(Plain, RefusesShapesThatMakeNoSense) {
  const PlainContractions plain;
  EXPECT_THROW(plain.conv(ConvKind::fprop, ConvProblem{1, 2, 2, 4, 4, 3, 3, 1, 0}), Error);
  EXPECT_THROW(plain.conv(ConvKind::fprop, ConvProblem{0, 8, 8, 4, 4, 3, 3, 1, 1}), Error);
  EXPECT_THROW(plain.matmul(MatmulProblem{4, 4, 4, 3, 4, 4}), Error);
}

}  // namespace
}  // namespace difuse::codegen
