// What a training step becomes where convolutions compute the images that they read.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "ir/device_spec.h"
#include "models/presets.h"
#include "models/training_step.h"
#include "runtime/compile.h"

namespace difuse::models {
namespace {

/// With all prologues: every residual block's norms, forward and backward, and every concatenation, but for the few
/// that the report refuses.
TEST(PrologueStep, AllOfThemTakeFewLaunches) {
  Preset preset = find_preset("adm-seed64");
  preset.training.batch = 32;
  const ir::Graph graph = build_training_step(preset.unet, preset.diffusion, preset.training);
  passes::FusionReport report;
  runtime::CompileSettings settings;
  settings.precision = passes::Precision::bf16;
  settings.prologues = passes::Prologues::always;
  settings.report = &report;
  const auto plan = runtime::plan_cuda(graph, {}, *ir::find_device_spec("sm_90a"), settings);
  EXPECT_LE(plan.calls.size(), 350u);
  const auto count = [&](const std::string& what) {
    return std::ranges::count_if(report.lines, [&](const std::string& line) {
      return line.starts_with("computed") && line.find(what) != std::string::npos;
    });
  };
  constexpr int kBlocks = 22, kSkips = 12;
  EXPECT_EQ(count("sigmoid_sub_mul_add_mul_mul_mul_mul_add_add_cast"), kBlocks)
      << "the gradients of their second norms";
  EXPECT_EQ(count(" concat in the prologues"), kSkips);
}

}  // namespace
}  // namespace difuse::models
