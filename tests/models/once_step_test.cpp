// What steps of models make of parameters alone: how many kernels are left, and that drawing follows the parameters.
#include <gtest/gtest.h>

#include "models/presets.h"
#include "models/sampler.h"
#include "models/training_step.h"
#include "models/unet.h"
#include "runtime/compile.h"
#include "tests/models/model_checks.h"
#include "tests/support/backend/gpu.h"

namespace difuse::models {
namespace {

ir::Options without_hoist() {
  ir::Options options;
  options.disable = {"hoist"};
  return options;
}

/// Of a step, whether they share a launch or not.
int computations(const codegen::cuda::CudaPlan& plan) {
  int count = 0;
  for (const codegen::cuda::KernelCall& call : plan.calls) count += call.members;
  return count;
}

TEST(OnceStep, ParametersAreRoundedOnceWhereNoStepReplacesThem) {
  const Preset preset = find_preset("tiny");
  const SamplerConfig sampler = default_sampler(preset.diffusion, SamplerKind::heun);
  for (const char* architecture : {"sm_80", "sm_90a"}) {
    const ir::DeviceSpec& device = *ir::find_device_spec(architecture);
    for (const passes::Precision precision : {passes::Precision::bf16, passes::Precision::tf32}) {
      runtime::CompileSettings settings;
      settings.precision = precision;
      for (const ir::Graph& graph :
           {build_sampling_step(preset.unet, preset.diffusion, sampler), build_forward(preset.unet, 2)}) {
        const auto once = runtime::plan_cuda(graph, {}, device, settings);
        const auto always = runtime::plan_cuda(graph, without_hoist(), device, settings);
        EXPECT_EQ(once.once.size(), 1) << graph.name();
        EXPECT_EQ(always.once.size(), 0) << graph.name();
        EXPECT_EQ(computations(once) + 1, computations(always)) << graph.name();
      }
    }
  }
}

TEST(OnceStep, ATrainingStepRoundsItsParametersWhenTheyAreWritten) {
  Preset preset = find_preset("tiny");
  preset.training.batch = 2;
  runtime::CompileSettings settings;
  settings.precision = passes::Precision::bf16;
  const ir::Graph graph = build_training_step(preset.unet, preset.diffusion, preset.training);
  const ir::DeviceSpec& device = *ir::find_device_spec("sm_90a");
  EXPECT_EQ(runtime::plan_cuda(graph, {}, device, settings).once.size(), 1);
  EXPECT_EQ(runtime::plan_cpu(graph, {}, 1, settings).once.size(), 1);
}

/// Draws with one set of parameters, with another and with the first again, by two samplers of each kind: the second
/// computes all in every step.
void expect_drawing_follows_parameters(const Backend& backend, const ir::Options& environment) {
  Preset preset = find_preset("tiny");
  preset.unet.num_classes = 3;
  preset.diffusion.label_dropout = 0.1;
  SamplerConfig config = default_sampler(preset.diffusion);
  config.steps = 3;
  config.batch = 2;
  config.guidance = 2;
  ir::Options without = environment;
  without.disable = {"hoist"};
  Sampler once(preset.unet, preset.diffusion, config, environment, backend);
  Sampler always(preset.unet, preset.diffusion, config, without, backend);
  const ParameterLayout layout = parameter_layout(preset.unet);
  std::vector<std::vector<float>> drawn;
  for (const uint32_t seed : {1u, 2u, 1u}) {
    std::vector<float> parameters;
    for (const double p : parameters_without_zeros(layout, seed)) parameters.push_back(static_cast<float>(p));
    const DrawRequest request{parameters, 5, image_numbers(0, 3), {0, 1}};
    drawn.push_back(once.draw_exact(request));
    EXPECT_EQ(drawn.back(), always.draw_exact(request)) << seed;
  }
  EXPECT_NE(drawn[0], drawn[1]);
  EXPECT_EQ(drawn[0], drawn[2]);
}

TEST(OnceStep, DrawingFollowsTheParameters) { expect_drawing_follows_parameters({{1}, passes::Precision::bf16}, {}); }

TEST(GpuOnceStep, DrawingFollowsTheParametersEagerAndReplayed) {
  DIFUSE_NEED_GPU(gpu);
  for (const passes::Precision precision : {passes::Precision::bf16, passes::Precision::tf32}) {
    for (const bool debug : {false, true}) {
      for (const bool graphs : {true, false}) {
        ir::Options environment;
        environment.debug = debug;
        environment.cuda_graphs = graphs;
        expect_drawing_follows_parameters({gpu, precision}, environment);
      }
    }
  }
}

}  // namespace
}  // namespace difuse::models
