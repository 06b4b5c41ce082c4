// What is computed again instead of kept has the bits of what was kept, in the kernels of both backends.
#include <gtest/gtest.h>

#include "ir/text.h"
#include "passes/pipeline.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/backend/emulated_executor.h"
#include "tests/support/backend/rematerialized.h"
#include "tests/support/graphs/graphs.h"

namespace difuse {
namespace {

using passes::Precision;

class RematerializeRun : public ::testing::TestWithParam<Precision> {
 protected:
  const ir::Graph graph_ = tests::scaled_convolutions(2, 4, 8);
  const ir::TensorMap inputs_ = tests::random_values(graph_, ir::Op::input, 1);
  const ir::Graph kept_ = passes::run_pipeline(graph_, *ir::find_device_spec("h100"), {.precision = GetParam()});
  const ir::Graph again_ = testing::rematerialized(kept_);
};

TEST_P(RematerializeRun, KeepsEveryBitOnTheCpu) {
  ASSERT_NE(ir::print(again_), ir::print(kept_));
  testing::expect_same(testing::run_cpu(again_, inputs_), testing::run_cpu(kept_, inputs_), "the CPU");
}

TEST_P(RematerializeRun, KeepsEveryBitInTheEmulator) {
  testing::expect_same(testing::run(*testing::lower_emulated(again_), inputs_, {}),
                       testing::run(*testing::lower_emulated(kept_), inputs_, {}), "the emulator");
}

INSTANTIATE_TEST_SUITE_P(Precisions, RematerializeRun,
                         ::testing::Values(Precision::f32, Precision::tf32, Precision::bf16),
                         [](const auto& p) { return std::string(to_string(p.param)); });

}  // namespace
}  // namespace difuse
