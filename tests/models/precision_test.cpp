// Training in tf32 and bf16 on the CPU backend: a step against the reference of the same rounded graph, node by node
// and as a whole, and a loss curve against that of f32.
#include <gtest/gtest.h>

#include <numeric>
#include <tuple>

#include "models/presets.h"
#include "passes/pipeline.h"
#include "runtime/compile.h"
#include "tests/models/golden_file.h"
#include "tests/models/step_case.h"
#include "tests/support/backend/cpu_run.h"

namespace difuse::models {
namespace {

using passes::Precision;

struct Case {
  Precision precision;
  double loss, gradient;  ///< Tolerances.
};
class PrecisionStep : public ::testing::TestWithParam<Case> {};

TEST_P(PrecisionStep, EveryNodeAgreesWithItsReference) {
  const StepCase step = mid_training_step("tiny", 5);
  for (bool fuse : {true, false}) {
    const auto executor = runtime::compile(step.graph, {}, 2, {.fuse = fuse, .precision = GetParam().precision});
    for (const auto& [name, t] : step.inputs) executor->write_input(name, testing::encode(t));
    for (const auto& [name, t] : step.states) executor->write_state(name, testing::encode(t));
    testing::expect_nodes_agree(*executor);
  }
}

// Where an f32 sum and the fp64 sum round to neighbours, one step of the precision apart, everything after them is
// rounded from other numbers: the two gradients are two draws of the same rounding noise. The loss averages it out.
TEST_P(PrecisionStep, AgreesWithTheReferenceOfTheRoundedGraph) {
  const StepCase step = mid_training_step("tiny", 5);
  const ir::Graph rounded = passes::run_pipeline(step.graph, {}, {.fuse = false, .precision = GetParam().precision});
  const auto want = ir::run_reference(rounded, step.inputs, step.states);
  const auto f32 = ir::run_reference(step.graph, step.inputs, step.states);
  EXPECT_NE(want.outputs.at("loss").data, f32.outputs.at("loss").data) << "nothing is rounded";
  const auto executor = runtime::compile(step.graph, {}, 2, {.precision = GetParam().precision});
  const auto got = testing::run(*executor, step.inputs, step.states);
  const auto decoded = [&](const std::string& name) {
    return testing::decode(want.outputs.at(name).type, got.outputs.at(name)).data;
  };
  const double loss = want.outputs.at("loss").data[0];
  EXPECT_NEAR(decoded("loss")[0], loss, GetParam().loss * loss);
  expect_parameters_near(step.layout, decoded("gradient"), want.outputs.at("gradient").data, GetParam().gradient,
                         "gradient");
}

INSTANTIATE_TEST_SUITE_P(All, PrecisionStep,
                         ::testing::Values(Case{Precision::tf32, 1e-4, 0x1p-8}, Case{Precision::bf16, 1e-3, 0x1p-5}),
                         [](const auto& i) { return std::string(to_string(i.param.precision)); });

std::vector<double> loss_curve(const StepCase& start, Precision precision, int steps) {
  const auto executor = runtime::compile(start.graph, {}, 2, {.precision = precision});
  for (const auto& [name, t] : start.inputs) executor->write_input(name, testing::encode(t));
  for (const auto& [name, t] : start.states) executor->write_state(name, testing::encode(t));
  std::vector<double> losses;
  for (int i = 0; i < steps; ++i) {
    executor->run();
    float loss = 0;
    executor->read_output("loss", std::as_writable_bytes(std::span(&loss, 1)));
    losses.push_back(static_cast<double>(loss));
  }
  return losses;
}

TEST(PrecisionCurve, FollowsThatOfF32) {
  constexpr int kSteps = 30;
  const StepCase start = mid_training_step("tiny", 16);
  const std::vector<double> f32 = loss_curve(start, Precision::f32, kSteps);
  const auto mean = [](const std::vector<double>& x) { return std::accumulate(x.begin(), x.end(), 0.0) / kSteps; };
  for (const auto& [precision, each, all] :
       {std::tuple{Precision::tf32, 1e-3, 2e-4}, std::tuple{Precision::bf16, 5e-3, 1e-3}}) {
    const std::vector<double> curve = loss_curve(start, precision, kSteps);
    for (int i = 0; i < kSteps; ++i) {
      const auto at = static_cast<size_t>(i);
      EXPECT_NEAR(curve[at], f32[at], each * f32[at]) << to_string(precision) << " step " << i;
    }
    EXPECT_NEAR(mean(curve), mean(f32), all * mean(f32)) << to_string(precision);
  }
}

}  // namespace
}  // namespace difuse::models
