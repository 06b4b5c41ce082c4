// What is computed again instead of kept has the bits of what was kept, in the kernels of both backends.
#include <gtest/gtest.h>

#include "ir/text.h"
#include "passes/pipeline.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/backend/emulated_executor.h"
#include "tests/support/graphs/graphs.h"

namespace difuse {
namespace {

using passes::Precision;

class RematerializeRun : public ::testing::TestWithParam<Precision> {
 protected:
  static ir::Graph compiled(const ir::Graph& graph, const ir::Options& options) {
    return passes::run_pipeline(graph, *ir::find_device_spec("h100"), {.options = &options, .precision = GetParam()});
  }

  const ir::Graph graph_ = tests::scaled_convolutions(2, 4, 8);
  const ir::TensorMap inputs_ = tests::random_values(graph_, ir::Op::input, 1);
  const ir::Graph again_ = compiled(graph_, {});
  const ir::Graph kept_ = [this] {
    ir::Options options;
    options.disable = {"rematerialize"};
    return compiled(graph_, options);
  }();
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
