// Whole training and sampling steps on a GPU: against the fp64 reference, against themselves, against the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "models/presets.h"
#include "models/sampler.h"
#include "models/unet.h"
#include "runtime/compile.h"
#include "tests/models/model_checks.h"
#include "tests/models/step_case.h"
#include "tests/support/backend/cpu_run.h"
#include "tests/support/backend/gpu.h"

namespace difuse::models {
namespace {

using passes::Precision;
using testing::CpuRun;

StepCase step_of(const char* model, int64_t batch) {
  Preset preset = find_preset(model);
  preset.training.batch = batch;
  return mid_training_step(preset.unet, preset.diffusion, preset.training);
}

runtime::CompileSettings in(Precision precision) {
  runtime::CompileSettings settings;
  settings.precision = precision;
  return settings;
}

CpuRun run(const runtime::Target& target, const StepCase& step, const runtime::CompileSettings& settings, int steps,
           bool graphs = true) {
  ir::Options options;
  options.cuda_graphs = graphs;
  return testing::run(*runtime::compile(step.graph, options, target, settings), step.inputs, step.states, steps);
}

float number(const CpuRun& run, const char* output) {
  float value = 0;
  std::memcpy(&value, run.outputs.at(output).data(), sizeof(value));
  return value;
}

TEST(GpuStep, AgreesWithTheReferenceInF32) {
  DIFUSE_NEED_GPU(gpu);
  for (const int64_t batch : {13, 1, 3}) {
    SCOPED_TRACE(batch);
    expect_agrees(step_of("tiny", batch), gpu, batch == 13 ? 1e-5 : 3e-5);
  }
}

TEST(GpuStep, ANewBatchCompilesNothing) {
  DIFUSE_NEED_GPU(gpu);
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    static_cast<void>(run(gpu, step_of("tiny", 13), in(precision), 1));
    const int misses = gpu.cache->counts().misses;
    for (const int64_t batch : {1, 3, 64}) static_cast<void>(run(gpu, step_of("tiny", batch), in(precision), 1));
    EXPECT_EQ(gpu.cache->counts().misses, misses) << passes::to_string(precision);
  }
}

TEST(GpuStep, HasTheSameBitsEagerReplayedRunAfterRunAndInFreshMemory) {
  DIFUSE_NEED_GPU(gpu);
  const StepCase step = step_of("tiny", 13);
  for (const Precision precision : {Precision::f32, Precision::tf32, Precision::bf16}) {
    SCOPED_TRACE(passes::to_string(precision));
    runtime::CompileSettings settings = in(precision);
    const CpuRun first = run(gpu, step, settings, 5);
    testing::expect_same(run(gpu, step, settings, 5), first, "run after run");
    testing::expect_same(run(gpu, step, settings, 5, /*graphs=*/false), first, "eager");
    settings.reuse_memory = false;
    testing::expect_same(run(gpu, step, settings, 5), first, "fresh memory");
  }
}

// A rate that were captured as a constant would never reach zero.
TEST(GpuStep, OverOneHundredStepsTheRateReachesZeroAndGraphAndEagerStayEqual) {
  DIFUSE_NEED_GPU(gpu);
  Preset preset = find_preset("tiny");
  preset.training.batch = 8;
  preset.training.optimizer.schedule = LearningRateSchedule::cosine;
  preset.training.optimizer.total_steps = 60;
  StepCase step = mid_training_step(preset.unet, preset.diffusion, preset.training);
  step.states.at("step").data[0] = 0;
  const CpuRun at_61 = run(gpu, step, in(Precision::bf16), 61);
  const CpuRun at_100 = run(gpu, step, in(Precision::bf16), 100);
  testing::expect_same(run(gpu, step, in(Precision::bf16), 100, /*graphs=*/false), at_100, "eager");
  EXPECT_EQ(number(at_100, "lr"), 0);
  EXPECT_EQ(at_61.states.at("params"), at_100.states.at("params"));
  EXPECT_NE(testing::encode(step.states.at("params")), at_61.states.at("params"));
  EXPECT_EQ(testing::decode({ir::DType::i32, {}}, at_100.states.at("step")).data[0], 100);
  EXPECT_TRUE(std::isfinite(number(at_100, "loss")));
}

TEST(GpuStep, FollowsTheCpu) {
  DIFUSE_NEED_GPU(gpu);
  const StepCase step = step_of("tiny", 16);
  const CpuRun cpu = run(2, step, in(Precision::f32), 10), f32 = run(gpu, step, in(Precision::f32), 10);
  EXPECT_NEAR(number(f32, "loss"), number(cpu, "loss"), 1e-3 * number(cpu, "loss"));
  EXPECT_NEAR(number(f32, "grad_norm"), number(cpu, "grad_norm"), 1e-2 * number(cpu, "grad_norm"));
  for (const Precision precision : {Precision::tf32, Precision::bf16}) {
    const CpuRun narrow = run(gpu, step, in(precision), 10);
    EXPECT_NEAR(number(narrow, "loss"), number(cpu, "loss"), 3e-2 * number(cpu, "loss"));
    EXPECT_EQ(number(narrow, "nonfinite"), 0);
  }
}

void write_leaves(runtime::Executor& executor, const StepCase& step) {
  for (const auto& [name, tensor] : step.inputs) executor.write_input(name, testing::encode(tensor));
  for (const auto& [name, tensor] : step.states) executor.write_state(name, testing::encode(tensor));
}

TEST(GpuStep, EveryNodeAgreesInEveryPrecision) {
  DIFUSE_NEED_GPU(gpu);
  for (const char* model : {"tiny", "mnist-small"}) {
    const StepCase step = step_of(model, 2);
    for (const Precision precision : {Precision::f32, Precision::tf32, Precision::bf16}) {
      SCOPED_TRACE(std::string(model) + " in " + std::string(passes::to_string(precision)));
      const auto executor = runtime::compile(step.graph, {}, gpu, in(precision));
      write_leaves(*executor, step);
      testing::expect_nodes_agree(*executor);
    }
  }
}

// Whole trajectories, whose steps the host does not wait for.
TEST(GpuSampler, AnImageDependsNeitherOnItsBatchNorOnTheRun) {
  DIFUSE_NEED_GPU(gpu);
  const Preset preset = find_preset("tiny");
  const StepCase step = step_of("tiny", 1);
  std::vector<float> parameters;
  for (const double p : step.states.at("params").data) parameters.push_back(static_cast<float>(p));
  for (const Precision precision : {Precision::f32, Precision::bf16}) {
    SCOPED_TRACE(passes::to_string(precision));
    SamplerConfig config = default_sampler(preset.diffusion);
    config.steps = std::min<int64_t>(20, preset.diffusion.timesteps);
    const auto draw = [&](int64_t batch, int64_t first, int64_t count) {
      config.batch = batch;
      Sampler sampler(preset.unet, preset.diffusion, config, {}, {gpu, precision});
      return sampler.draw({parameters, 5, image_numbers(first, count), {}});
    };
    const auto all = draw(64, 0, 64), sevens = draw(7, 0, 64), last = draw(1, 63, 1);
    ASSERT_EQ(all.size(), 64u);
    ASSERT_EQ(sevens.size(), 64u);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].pixels, sevens[i].pixels) << i;
    EXPECT_EQ(last[0].pixels, all[63].pixels);
    EXPECT_NE(all[0].pixels, all[1].pixels);
  }
}

TEST(GpuSampler, EveryKindDrawsWhatTheCpuDraws) {
  DIFUSE_NEED_GPU(gpu);
  UNetConfig unet = find_preset("tiny").unet;
  unet.num_classes = 4;
  const ParameterLayout layout = parameter_layout(unet);
  std::vector<float> parameters;
  for (const double p : parameters_without_zeros(layout, 4)) parameters.push_back(static_cast<float>(p));
  const DrawRequest request{parameters, 5, image_numbers(3, 5), {0, 1, 2}};
  for (const Process process : {Process::ddpm, Process::edm}) {
    DiffusionConfig diffusion;
    diffusion.process = process;
    diffusion.label_dropout = 0.1;
    using enum SamplerKind;
    for (const SamplerKind kind : {ddpm, ddim, euler, heun, dpmpp2m}) {
      SCOPED_TRACE(std::string(to_string(process)) + ", " + std::string(to_string(kind)));
      SamplerConfig config = default_sampler(diffusion, kind);
      config.steps = 3;
      config.batch = 2;
      config.guidance = 1.5;
      config.clipping = process == Process::edm ? Clipping::dynamic : Clipping::clip;
      Sampler on_cpu(unet, diffusion, config, {}, 2);
      Sampler on_gpu(unet, diffusion, config, {}, {gpu, Precision::f32});
      const auto as_doubles = [](const std::vector<float>& v) { return std::vector<double>(v.begin(), v.end()); };
      const auto expect_near_cpu = [&] {
        EXPECT_LE(ir::relative_error(as_doubles(on_gpu.draw_exact(request)), as_doubles(on_cpu.draw_exact(request))),
                  1e-3);
      };
      expect_near_cpu();
      config.steps = 7;  // The same graph.
      config.spacing = Spacing::karras;
      on_cpu.use(config);
      on_gpu.use(config);
      expect_near_cpu();
      Sampler fresh(unet, diffusion, config, {}, {gpu, Precision::f32});
      EXPECT_EQ(fresh.draw_exact(request), on_gpu.draw_exact(request));
    }
  }
}

}  // namespace
}  // namespace difuse::models
