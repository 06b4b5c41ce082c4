// The whole training step on the CPU backend: against the fp64 reference, and bit for bit against itself.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "models/parameters.h"
#include "models/presets.h"
#include "models/training_step.h"
#include "models/unet.h"
#include "runtime/compile.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/op_rows.h"

namespace difuse {
namespace {

using testing::CpuRun;

constexpr uint32_t kSeed = 77;

struct Step {
  models::ParameterLayout layout;
  ir::Graph graph;
  ir::TensorMap inputs, states;
};

/// A step in the middle of a training: every parameter, moment and average is non-zero, so that no update hangs on the
/// sign of a gradient that is zero but for rounding.
Step mid_training_step(const char* model, int64_t batch) {
  const models::Preset preset = models::find_preset(model);
  models::TrainingConfig config = preset.training;
  config.batch = batch;
  Step step{models::parameter_layout(preset.unet),
            models::build_training_step(preset.unet, preset.diffusion, config),
            {},
            {}};
  step.inputs = testing::random_leaves(step.graph, ir::Op::input, kSeed);
  for (size_t i = 0; i < step.inputs.at("index").data.size(); ++i) {
    step.inputs.at("index").data[i] = static_cast<double>(i);
  }
  std::mt19937_64 rng(kSeed);
  for (double& p : step.inputs.at("pixels").data) p = static_cast<double>(rng() % 256);
  step.states = testing::random_leaves(step.graph, ir::Op::state, kSeed);
  const std::vector<float> start = models::initial_parameters(step.layout, {kSeed, 0});
  std::normal_distribution<float> normal;
  auto fill = [&](const char* state, auto value) {
    auto& data = step.states.at(state).data;
    std::fill(data.begin(), data.end(), 0.0);  // the gaps between slices
    for (size_t p = 0; p < step.layout.specs().size(); ++p) {
      const auto begin = static_cast<size_t>(step.layout.offsets()[p]);
      const auto count = static_cast<size_t>(step.layout.specs()[p].elements());
      for (size_t i = begin; i < begin + count; ++i) data[i] = static_cast<double>(static_cast<float>(value(i)));
    }
  };
  fill("params", [&](size_t i) { return start[i] + 0.05f * normal(rng); });
  fill("adam_m", [&](size_t) { return 1e-3f * normal(rng); });
  fill("adam_v", [&](size_t) { return 1e-5f * (1 + normal(rng) * normal(rng)); });
  for (double& v : step.states.at("adam_v").data) v = std::abs(v);
  fill("ema", [&](size_t i) { return start[i]; });
  step.states.at("step").data[0] = 321;
  return step;
}

CpuRun run(const Step& step, int threads, const runtime::CompileSettings& settings = {}, int steps = 1) {
  const auto executor = runtime::compile(step.graph, {}, threads, settings);
  return testing::run(*executor, step.inputs, step.states, steps);
}

/// Worst error over the parameters of a packed vector, slice by slice.
double worst_slice(const models::ParameterLayout& layout, const ir::Tensor& got, const ir::Tensor& want) {
  double largest = 0, worst = 0;
  for (double x : want.data) largest = std::max(largest, std::abs(x));
  for (size_t p = 0; p < layout.specs().size(); ++p) {
    const auto begin = static_cast<size_t>(layout.offsets()[p]);
    const auto count = static_cast<size_t>(layout.specs()[p].elements());
    worst = std::max(worst, ir::relative_error(std::span(got.data).subspan(begin, count),
                                               std::span(want.data).subspan(begin, count), largest));
  }
  return worst;
}

class CpuStep : public ::testing::TestWithParam<std::pair<const char*, int64_t>> {};

TEST_P(CpuStep, AgreesWithTheReference) {
  const auto [model, batch] = GetParam();
  const Step step = mid_training_step(model, batch);
  const auto want = ir::run_reference(step.graph, step.inputs, step.states);
  for (bool fuse : {true, false}) {
    const CpuRun got = run(step, 2, {.fuse = fuse});
    for (const char* scalar : {"loss", "grad_norm", "nonfinite", "lr"}) {
      const ir::Tensor& w = want.outputs.at(scalar);
      EXPECT_LE(ir::relative_error(testing::decode(w.type, got.outputs.at(scalar)).data, w.data), 1e-5) << scalar;
    }
    const ir::Tensor& gradient = want.outputs.at("gradient");
    EXPECT_LE(worst_slice(step.layout, testing::decode(gradient.type, got.outputs.at("gradient")), gradient), 1e-5);
    for (const char* state : {"params", "adam_m", "adam_v", "ema"}) {
      const ir::Tensor& w = want.states.at(state);
      EXPECT_LE(worst_slice(step.layout, testing::decode(w.type, got.states.at(state)), w), 1e-5)
          << state << (fuse ? " fused" : " unfused");
    }
    EXPECT_EQ(testing::decode({ir::DType::i32, {}}, got.states.at("step")).data[0], 322);
  }
}

TEST_P(CpuStep, HasTheSameBitsForAnyThreadCountAndMemoryPlan) {
  const Step step = mid_training_step(GetParam().first, 13);
  const CpuRun two = run(step, 2, {}, 3);
  testing::expect_same(run(step, 1, {}, 3), two, "1 and 2 threads");
  testing::expect_same(run(step, 3, {}, 3), two, "3 and 2 threads");
  testing::expect_same(run(step, 2, {}, 3), two, "run after run");
  testing::expect_same(run(step, 2, {.reuse_memory = false}, 3), two, "fresh and planned memory");
}

// mnist-small norms single channels of 28x28 pixels, so the gradient of a bias before such a norm is zero by
// construction, and f32 leaves half a unit of a whole channel's sum in it. That noise is an image's own: it averages
// out over the batch, and is below the bound from some 16 images on.
INSTANTIATE_TEST_SUITE_P(Presets, CpuStep,
                         ::testing::Values(std::pair{"tiny", int64_t{13}}, std::pair{"mnist-small", int64_t{24}}),
                         [](const auto& i) {
                           std::string name = i.param.first;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(CpuPlan, NoContractionRunsOnAReferenceImplementation) {
  for (const char* model : {"tiny", "fashion-demo", "mnist-small"}) {
    const Step step = mid_training_step(model, 3);
    const auto executor = runtime::compile(step.graph, {}, 1);
    int contractions = 0;
    for (const auto& kernel : executor->plan().kernels) {
      if (kernel->implementation.empty()) continue;
      ++contractions;
      EXPECT_EQ(kernel->implementation.find("ref"), std::string::npos) << kernel->name << " " << kernel->implementation;
    }
    EXPECT_GT(contractions, 40) << model;
  }
}

}  // namespace
}  // namespace difuse
