// The CUDA kernels of whole steps compile for the oldest and for the newest architecture; no GPU is needed, only NVRTC.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "models/presets.h"
#include "models/training_step.h"
#include "runtime/compile.h"

namespace difuse::models {
namespace {

class EveryKernelCompiles : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryKernelCompiles, OfATrainingStep) {
  std::string reason;
  if (!codegen::NvrtcLibrary::load({}, &reason)) GTEST_SKIP() << reason;
  Preset preset = find_preset("tiny");
  preset.unet.conditioning_channels = 1;  // With the kernels that make the low-resolution images.
  const ir::Graph graph = build_training_step(preset.unet, preset.diffusion, preset.training, /*flip=*/true);
  codegen::KernelCache memory_only{{}};
  for (const passes::Precision precision : {passes::Precision::bf16, passes::Precision::f32}) {
    runtime::CompileSettings settings;
    settings.precision = precision;
    const auto plan = runtime::plan_cuda(graph, {}, *ir::find_device_spec(GetParam()), settings);
    EXPECT_EQ(runtime::compile_kernels(plan, {}, memory_only, /*newest_major=*/0, settings).size(),
              plan.sources.size());
  }
}

std::set<std::string> kernel_names(const char* architecture, passes::Precision precision, int64_t batch) {
  Preset preset = find_preset("tiny");
  preset.training.batch = batch;
  const ir::Graph graph = build_training_step(preset.unet, preset.diffusion, preset.training, /*flip=*/true);
  runtime::CompileSettings settings;
  settings.precision = precision;
  std::set<std::string> names;
  for (const auto& source : runtime::plan_cuda(graph, {}, *ir::find_device_spec(architecture), settings).sources) {
    names.insert(source.name);
  }
  return names;
}

class ANewBatch : public ::testing::TestWithParam<const char*> {};

TEST_P(ANewBatch, HasNoKernelOfItsOwn) {
  for (const passes::Precision precision : {passes::Precision::bf16, passes::Precision::f32}) {
    const std::set<std::string> names = kernel_names(GetParam(), precision, 13);
    for (const int64_t batch : {1, 3, 64}) {
      for (const std::string& name : kernel_names(GetParam(), precision, batch)) {
        EXPECT_TRUE(names.contains(name)) << batch << " images: " << name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, ANewBatch, ::testing::Values("sm_80", "sm_90a"),
                         [](const auto& made) { return std::string(made.param); });

INSTANTIATE_TEST_SUITE_P(Architectures, EveryKernelCompiles, ::testing::Values("sm_80", "sm_90a"),
                         [](const auto& made) { return std::string(made.param); });

}  // namespace
}  // namespace difuse::models
