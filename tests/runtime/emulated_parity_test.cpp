// Every op's CUDA kernels against the fp64 reference, run by the emulator, over the rows that all backends share.
#include <gtest/gtest.h>

#include "tests/support/backend/cpu_run.h"
#include "tests/support/backend/emulated_executor.h"
#include "tests/support/op_rows.h"

namespace difuse {
namespace {

class EmulatedOp : public ::testing::TestWithParam<testing::OpRow> {};

TEST_P(EmulatedOp, MatchesReference) {
  const testing::OpRow& row = GetParam();
  const ir::TensorMap inputs = testing::random_inputs(row, 1);
  const auto executor = testing::lower_emulated(row.graph);
  const testing::CpuRun first = testing::run(*executor, inputs, {});
  testing::expect_near_reference(row.graph, first, inputs, {}, row.tolerance);
  testing::expect_same(first, testing::run(*executor, inputs, {}), "the second step");
  for (const auto& call : executor->plan().calls) EXPECT_GT(call.bytes, 0);
}

INSTANTIATE_TEST_SUITE_P(Rows, EmulatedOp, ::testing::ValuesIn(testing::op_rows()),
                         [](const auto& row) { return testing::test_name(row.param); });

}  // namespace
}  // namespace difuse
