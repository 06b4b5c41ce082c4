// Every op on a GPU against the fp64 reference, over the rows that all backends share.
#include <gtest/gtest.h>

#include "ir/op.h"
#include "passes/memory_plan.h"
#include "runtime/compile.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/backend/gpu.h"
#include "tests/support/op_rows.h"

namespace difuse {
namespace {

using codegen::cuda::CudaPlan;

// One test for all rows, so that their kernels are compiled together.
TEST(GpuOps, EveryRowMatchesTheReferenceEagerReplayedAndInFreshMemory) {
  DIFUSE_NEED_GPU(gpu);
  const std::vector<testing::OpRow> rows = testing::op_rows();
  std::vector<CudaPlan> planned, fresh;
  for (const testing::OpRow& row : rows) {
    planned.push_back(testing::plan_for(gpu, row.graph));
    fresh.push_back(testing::plan_for(gpu, row.graph, /*reuse_memory=*/false));
  }
  testing::compile_together(gpu, planned);
  testing::compile_together(gpu, fresh);
  for (size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(rows[i].name);
    const ir::TensorMap inputs = testing::random_inputs(rows[i], 1), others = testing::random_inputs(rows[i], 2);
    const auto executor = testing::execute(gpu, planned[i]);
    const testing::CpuRun eager = testing::run(*executor, inputs, {});
    testing::expect_near_reference(rows[i].graph, eager, inputs, {}, rows[i].tolerance);
    testing::expect_same(eager, testing::run(*executor, inputs, {}), "captured");
    const testing::CpuRun other = testing::run(*executor, others, {});
    testing::expect_near_reference(rows[i].graph, other, others, {}, rows[i].tolerance);
    testing::expect_same(eager, testing::run(*executor, inputs, {}), "replayed");
    testing::expect_same(eager, testing::run(*testing::execute(gpu, fresh[i]), inputs, {}, 3), "fresh memory");
    const auto launched = testing::execute(gpu, planned[i], {.graphs = false});
    testing::expect_same(eager, testing::run(*launched, inputs, {}, 3), "launched one by one");
    if (::testing::Test::HasFatalFailure()) return;
  }
}

/// Fills the inputs and compares node by node.
void expect_nodes_agree(runtime::Executor& executor, const testing::OpRow& row) {
  for (const auto& [name, tensor] : testing::random_inputs(row, 1)) {
    executor.write_input(name, testing::encode(tensor));
  }
  testing::expect_nodes_agree(executor);
}

TEST(GpuOps, ContractionsAgreeInTf32AndBf16) {
  DIFUSE_NEED_GPU(gpu);
  std::vector<testing::OpRow> rows;
  for (testing::OpRow& row : testing::op_rows()) {
    if (ir::info(row.op).has(ir::kContraction)) rows.push_back(std::move(row));
  }
  ASSERT_GT(rows.size(), 10u);
  for (const passes::Precision precision : {passes::Precision::tf32, passes::Precision::bf16}) {
    runtime::CompileSettings settings;
    settings.precision = precision;
    std::vector<CudaPlan> plans;
    for (const testing::OpRow& row : rows) {
      plans.push_back(runtime::plan_cuda(row.graph, {}, gpu.spec(), settings));
    }
    testing::compile_together(gpu, plans);
    for (size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE(rows[i].name + " in " + std::string(passes::to_string(precision)));
      expect_nodes_agree(*testing::execute(gpu, std::move(plans[i])), rows[i]);
    }
  }
}

}  // namespace
}  // namespace difuse
