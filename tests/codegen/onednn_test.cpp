#include "codegen/cpu/onednn.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "contraction_checks.h"

namespace difuse::codegen {
namespace {

using namespace testing;

class OneDnnTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    library_ = OneDnn::load(&reason);
    if (!library_) GTEST_SKIP() << reason;
  }
  std::unique_ptr<OneDnn> library_;
};

TEST_F(OneDnnTest, ConvolutionsMatchTheDefinitionAndNoneIsAReference) {
  each_conv([&](ConvKind kind, const ConvProblem& problem) {
    std::string impl_info;
    EXPECT_LE(conv_error(*library_, kind, problem, &impl_info), 1e-5) << name(kind, problem) << " " << impl_info;
    EXPECT_EQ(impl_info.find("ref"), std::string::npos) << name(kind, problem);
    EXPECT_NE(impl_info, "plain") << name(kind, problem);
  });
}

TEST_F(OneDnnTest, MatrixProductsMatchTheDefinition) {
  for (const MatmulProblem& problem : matmul_problems()) {
    std::string impl_info;
    EXPECT_LE(matmul_error(*library_, problem, &impl_info), 1e-5)
        << problem.m << " " << problem.n << " " << problem.k << " " << problem.transpose_a << problem.transpose_b
        << problem.accumulate;
    EXPECT_EQ(impl_info, "sgemm:jit");
  }
}

TEST_F(OneDnnTest, PrimitivesGiveTheSameBitsAloneAndFromTwoThreads) {
  for (const auto& [h, c, k, stride] : {std::tuple(28, 32, 32, 1), std::tuple(14, 64, 64, 1), std::tuple(28, 1, 32, 1),
                                        std::tuple(28, 32, 1, 1), std::tuple(15, 33, 36, 2)}) {
    for (const ConvKind kind : {ConvKind::fprop, ConvKind::dgrad, ConvKind::wgrad}) {
      const ConvProblem problem{kind == ConvKind::wgrad ? 8 : 1, h, h, c, k, 3, 3, stride, 1};
      const auto conv = library_->conv(kind, problem);
      const auto worker = [&](unsigned seed, size_t offset, int* differing) {
        const Buffer first = random_buffer(sizes(kind, problem).first, seed, offset);
        const Buffer second = random_buffer(sizes(kind, problem).second, seed + 1);
        const Buffer alone = run_plain_operands(*conv, kind, problem, random_buffer(first.size(), seed), second);
        for (int i = 0; i < 10; ++i) {
          const Buffer again = run_plain_operands(*conv, kind, problem, first, second);
          *differing += std::memcmp(alone.data(), again.data(), alone.size() * sizeof(float)) != 0;
        }
      };
      int expected[2] = {}, concurrent[2] = {};
      worker(5, 0, &expected[0]);
      worker(9, 3, &expected[1]);
      std::thread one(worker, 5, 0, &concurrent[0]), two(worker, 9, 3, &concurrent[1]);
      one.join();
      two.join();
      EXPECT_EQ(expected[0] + expected[1] + concurrent[0] + concurrent[1], 0) << name(kind, problem);
    }
  }
}

TEST_F(OneDnnTest, MatrixProductsGiveTheSameBitsAtAnyAlignmentAndFromTwoThreads) {
  for (MatmulProblem problem : matmul_problems()) {
    problem.accumulate = false;
    const auto matmul = library_->matmul(problem);
    const size_t a_size = static_cast<size_t>((problem.transpose_a ? problem.k : problem.m) * problem.lda);
    const size_t b_size = static_cast<size_t>((problem.transpose_b ? problem.n : problem.k) * problem.ldb);
    const auto run = [&](size_t offset) {
      const Buffer a = random_buffer(a_size, 1, offset);
      const Buffer b = random_buffer(b_size, 2, offset / 2);
      Buffer c(static_cast<size_t>(problem.m * problem.ldc), offset / 3);
      matmul->run(a.data(), b.data(), c.data(), nullptr);
      return c;
    };
    const Buffer expected = run(0);
    int differing[2] = {};
    const auto worker = [&](int* count) {
      for (size_t offset = 0; offset < 16; offset += 3) {
        const Buffer got = run(offset);
        *count += std::memcmp(expected.data(), got.data(), expected.size() * sizeof(float)) != 0;
      }
    };
    std::thread one(worker, &differing[0]), two(worker, &differing[1]);
    one.join();
    two.join();
    EXPECT_EQ(differing[0] + differing[1], 0) << problem.m << " " << problem.n << " " << problem.k;
  }
}

TEST_F(OneDnnTest, DescribesItself) {
  EXPECT_EQ(library_->version().substr(0, 2), "2.");
  EXPECT_NE(library_->description().find(library_->isa()), std::string::npos);
}

// The library reads its limit once, so a process of its own is needed.
TEST_F(OneDnnTest, HoldsOnMachinesThatHaveOnlyAvx2) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command =
      "ONEDNN_MAX_CPU_ISA=AVX2 '" + self + "' --gtest_filter='OneDnnTest.*-*OnlyAvx2' --gtest_brief=1 >&2";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST(MakeContractions, ServesWithOrWithoutTheLibrary) {
  std::string why_plain;
  const auto contractions = make_contractions(&why_plain);
  ASSERT_NE(contractions, nullptr);
  const bool plain = contractions->description().starts_with("plain");
  EXPECT_EQ(plain, !why_plain.empty()) << why_plain;
}

}  // namespace
}  // namespace difuse::codegen
