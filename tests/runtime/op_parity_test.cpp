// Every op on the CPU backend against the fp64 reference, over the rows that all backends share.
#include <gtest/gtest.h>

#include "ir/op.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/op_rows.h"

namespace difuse {
namespace {

class OpParity : public ::testing::TestWithParam<testing::OpRow> {};

TEST_P(OpParity, MatchesReferenceWhateverThreadsAndMemory) {
  const testing::OpRow& row = GetParam();
  const ir::TensorMap inputs = testing::random_inputs(row, 1);
  const auto executor = testing::lower(row.graph);
  const testing::CpuRun two = testing::run(*executor, inputs, {});
  testing::expect_near_reference(row.graph, two, inputs, {}, row.tolerance);
  testing::expect_same(two, testing::run(*executor, inputs, {}), "the second step");
  testing::expect_same(two, testing::run_cpu(row.graph, inputs, {}, {.threads = 1}), "one thread");
  testing::expect_same(two, testing::run_cpu(row.graph, inputs, {}, {.threads = 3}), "three threads");
  testing::expect_same(two, testing::run_cpu(row.graph, inputs, {}, {.reuse_memory = false}), "fresh memory");
  testing::expect_near_reference(row.graph, testing::run_cpu(row.graph, inputs, {}, {.plain = true}), inputs, {},
                                 row.tolerance);
  for (const auto& kernel : executor->profile()) {
    EXPECT_EQ(kernel.implementation.find("ref:"), std::string::npos) << kernel.name << ": " << kernel.implementation;
    EXPECT_FALSE(kernel.name.empty());
    EXPECT_GT(kernel.bytes, 0) << kernel.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, OpParity, ::testing::ValuesIn(testing::op_rows()),
                         [](const auto& row) { return testing::test_name(row.param); });

}  // namespace
}  // namespace difuse
