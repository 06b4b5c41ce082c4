// Weights as other programs write them, against outputs of PyTorch in float64 (tests/golden/weights/).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "ir/options.h"
#include "ir/reference.h"
#include "models/config/config_json.h"
#include "models/unet.h"
#include "models/weights/export.h"
#include "models/weights/trained_model.h"
#include "runtime/compile.h"
#include "runtime/safetensors.h"
#include "tests/models/foreign_models.h"
#include "tests/models/tolerance.h"
#include "tests/support/backend/emulated_executor.h"
#include "tests/support/backend/gpu.h"
#include "tests/support/temp_folder.h"

namespace difuse::models {
namespace {

namespace fs = std::filesystem;

ir::Graph forward_graph(const UNetConfig& unet, const ParameterLayout& layout) {
  constexpr int64_t batch = 2;
  ir::Graph graph("forward");
  ir::Builder build(graph);
  UNetInputs inputs;
  const auto image = [&](int64_t channels) {
    return ir::Type{ir::DType::f32, {batch, unet.image_height, unet.image_width, channels}};
  };
  const ir::Value all = build.input("x", image(unet.input_channels()));
  inputs.x = build.slice(all, 3, 0, unet.image_channels);
  if (unet.conditioning_channels > 0) {
    inputs.conditioning = build.slice(all, 3, unet.image_channels, unet.input_channels());
  }
  inputs.timesteps = build.input("timesteps", {ir::DType::f32, {batch}});
  if (unet.num_classes > 0) inputs.labels = build.input("label", {ir::DType::i32, {batch}});
  PackedParameters parameters(build, layout, build.state("params", {ir::DType::f32, {layout.size()}}));
  graph.set_output("output", build_unet(build, parameters, unet, inputs));
  return graph;
}

std::vector<float> run(runtime::Executor& executor, const runtime::SafetensorsReader& golden, const UNetConfig& unet,
                       const std::vector<float>& parameters) {
  executor.write_state("params", std::as_bytes(std::span(parameters)));
  executor.write_input("x", golden.bytes("x"));
  executor.write_input("timesteps", golden.bytes("timesteps"));
  if (unet.num_classes > 0) executor.write_input("label", golden.bytes("label"));
  executor.run();
  std::vector<float> out(golden.bytes("output").size() / sizeof(float));
  executor.read_output("output", std::as_writable_bytes(std::span(out)));
  return out;
}

void expect_output(const std::vector<float>& found, const runtime::SafetensorsReader& golden) {
  const auto wanted = values_of<float>(golden, "output");
  ASSERT_EQ(found.size(), wanted.size());
  const std::vector<double> a(found.begin(), found.end()), b(wanted.begin(), wanted.end());
  EXPECT_LT(ir::relative_error(a, b), kF32Tolerance);
}

class WeightsOracle : public ::testing::TestWithParam<ForeignModel> {
 protected:
  TrainedModel open() { return open_foreign(GetParam(), folder_.path()); }
  /// The output of a model on the CPU backend.
  std::vector<float> output_of(const TrainedModel& model) {
    const UNetConfig& unet = model.config().unet;
    const ParameterLayout layout = parameter_layout(unet);
    const auto executor = runtime::compile(forward_graph(unet, layout), ir::Options{}, kThreads, {});
    return run(*executor, golden_, unet, model.parameters(model.default_weights(), layout));
  }

  test::TempFolder folder_;
  runtime::SafetensorsReader golden_ = foreign_golden(GetParam().name);
};

TEST_P(WeightsOracle, TheCpuGivesPyTorchsOutput) { expect_output(output_of(open()), golden_); }

// What is written as a checkpoint or in guided-diffusion's names reads back as the same model to the last bit.
TEST_P(WeightsOracle, ConvertedWeightsReadBack) {
  const TrainedModel model = open();
  const ParameterLayout layout = parameter_layout(model.config().unet);
  const std::vector<float> parameters = model.parameters("raw", layout);

  const fs::path checkpoint = folder_.path() / "converted.safetensors";
  export_weights(WeightsFormat::difuse, checkpoint, model.config(), layout, parameters);
  const TrainedModel again = TrainedModel::open(checkpoint, "--from", {});
  EXPECT_TRUE(again.is_checkpoint());
  EXPECT_EQ(again.config().unet, model.config().unet);
  EXPECT_EQ(again.config().diffusion, model.config().diffusion);
  EXPECT_EQ(again.parameters(again.default_weights(), layout), parameters);

  const fs::path names = folder_.path() / "names.safetensors", toml = folder_.path() / "model.toml";
  export_weights(WeightsFormat::safetensors, names, model.config(), layout, parameters);
  std::ofstream text(toml);
  text << "[model]\n";
  const nlohmann::ordered_json fields = config_to_json(model.config().unet);
  for (const auto& [key, value] : fields.items()) text << key << " = " << value.dump() << "\n";
  text.close();
  if (fields["conv_resample"] == true && !model.config().unet.encoder_resampling.empty()) return;  // Mixed: not ADM's.
  const TrainedModel third = TrainedModel::open(names, "--from", {.model = {}, .config = toml});
  EXPECT_EQ(third.config().unet, model.config().unet);
  EXPECT_EQ(third.parameters("raw", layout), parameters);
}

TEST_P(WeightsOracle, DiffusersFoldersReadBack) {
  const TrainedModel model = open();
  const UNetConfig& unet = model.config().unet;
  const ParameterLayout layout = parameter_layout(unet);
  const std::vector<float> parameters = model.parameters("raw", layout);
  const fs::path target = folder_.path() / "written";
  std::string refusal;
  try {
    export_weights(WeightsFormat::diffusers, target, model.config(), layout, parameters);
  } catch (const Error& error) {
    refusal = error.what();
  }
  if (!refusal.empty()) {
    EXPECT_FALSE(GetParam().name.starts_with("diffusers") || GetParam().name == "adm_plain") << refusal;
    EXPECT_NE(refusal.find("UNet2DModel has no"), std::string::npos) << refusal;
    EXPECT_FALSE(fs::exists(target));
    return;
  }
  const TrainedModel again = TrainedModel::open(target, "--from", {});
  expect_output(output_of(again), golden_);
  EXPECT_EQ(again.config().diffusion.schedule, model.config().diffusion.schedule);
  EXPECT_EQ(again.config().diffusion.timesteps, model.config().diffusion.timesteps);
  EXPECT_EQ(again.config().diffusion.prediction, model.config().diffusion.prediction);
}

TEST(EmulatedWeightsOracle, OddPaddingAndTransposedConvolutions) {
  for (const auto& [name, file] : {std::pair{"diffusers_ddpm", "diffusers_ddpm"}, std::pair{"strided", "strided.pt"}}) {
    SCOPED_TRACE(name);
    WeightsOptions options;
    if (std::string(name) == "strided") options.config = kForeignFolder / "strided.toml";
    const TrainedModel model = TrainedModel::open(kForeignFolder / file, "--from", options);
    const UNetConfig& unet = model.config().unet;
    const ParameterLayout layout = parameter_layout(unet);
    auto plan = runtime::plan_cuda(forward_graph(unet, layout), ir::Options{}, *ir::find_device_spec("h100"), {});
    testing::EmulatedExecutor executor(std::move(plan));
    const runtime::SafetensorsReader golden = foreign_golden(name);
    expect_output(run(executor, golden, unet, model.parameters("raw", layout)), golden);
  }
}

class GpuWeightsOracle : public ::testing::TestWithParam<ForeignModel> {};

TEST_P(GpuWeightsOracle, TheGpuGivesPyTorchsOutput) {
  DIFUSE_NEED_GPU(gpu);
  if (GetParam().file.empty()) GTEST_SKIP() << "its file is made by the CPU's test";
  WeightsOptions options;
  if (!GetParam().described) options.config = kForeignFolder / (GetParam().name + ".toml");
  const TrainedModel model = TrainedModel::open(kForeignFolder / GetParam().file, "--from", options);
  const UNetConfig& unet = model.config().unet;
  const ParameterLayout layout = parameter_layout(unet);
  const auto executor = runtime::compile(forward_graph(unet, layout), ir::Options{}, gpu, {});
  const runtime::SafetensorsReader golden = foreign_golden(GetParam().name);
  expect_output(run(*executor, golden, unet, model.parameters("raw", layout)), golden);
}

const auto kCaseName = [](const auto& c) { return c.param.name; };
INSTANTIATE_TEST_SUITE_P(Files, WeightsOracle, ::testing::ValuesIn(kForeignModels), kCaseName);
INSTANTIATE_TEST_SUITE_P(Files, GpuWeightsOracle, ::testing::ValuesIn(kForeignModels), kCaseName);

}  // namespace
}  // namespace difuse::models
