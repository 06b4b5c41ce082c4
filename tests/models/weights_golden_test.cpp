// Weights as other programs write them, against outputs of PyTorch in float64 (tests/golden/weights/).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
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
#include "tests/support/backend/emulated_executor.h"
#include "tests/support/backend/gpu.h"
#include "tests/support/temp_folder.h"

namespace difuse::models {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(DIFUSE_SOURCE_DIR) / "tests" / "golden" / "weights";
constexpr double kF32Tolerance = 1e-5;
constexpr int kThreads = 2;

template <class T>
std::vector<T> values_of(const runtime::SafetensorsReader& file, const std::string& name) {
  const auto bytes = file.bytes(name);
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

runtime::SafetensorsReader golden_of(const std::string& name) {
  return runtime::SafetensorsReader(kFolder / (name + ".golden.safetensors"));
}

/// The same numbers as generate.py's hashed().
double hashed(uint32_t i) {
  uint32_t h = i * 2654435769u + 12345u;
  h = (h ^ (h >> 16)) * 0x45d9f3bu;
  h ^= h >> 16;
  return static_cast<double>(h >> 8) / 8388608 - 1;
}

/// The weights file of unet.cu that the golden describes, with moments behind the weights or without.
void write_unet_cu(const fs::path& path, bool moments) {
  const runtime::SafetensorsReader golden = golden_of("unet_cu");
  const auto sizes = values_of<int32_t>(golden, "sizes");
  const auto centres = values_of<double>(golden, "centres"), spreads = values_of<double>(golden, "spreads");
  std::array<int32_t, 256> header = {12345678, 2, 3, 32, 3, 8, 8, 1000, moments ? 1 : 0, 0};
  std::vector<float> values;
  for (size_t tensor = 0; tensor < sizes.size(); ++tensor) {
    for (int32_t i = 0; i < sizes[tensor]; ++i) {
      const double u = hashed(static_cast<uint32_t>(values.size()));
      values.push_back(static_cast<float>(centres[tensor] + spreads[tensor] * u));
    }
  }
  const auto count = static_cast<std::streamsize>(values.size() * sizeof(float));
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(header.data()), sizeof header);
  for (int copy = 0; copy < (moments ? 3 : 1); ++copy) file.write(reinterpret_cast<const char*>(values.data()), count);
}

struct Case {
  std::string name;
  std::string file;       ///< Below the folder; empty: made by the test.
  bool described = true;  ///< The file says its whole model; otherwise NAME.toml does.
};

const std::vector<Case> kCases = {{"adm_plain", "adm_plain.pt", false},
                                  {"adm_everything", "adm_everything.pt", false},
                                  {"adm_half", "adm_half.pt", false},
                                  {"adm_views", "adm_views.pt", false},
                                  {"adm_upsampler", "adm_upsampler.pt", false},
                                  {"unet_cu_names", "unet_cu_names.pt", false},
                                  {"unet_cu", "", true},
                                  {"diffusers_plain", "diffusers_plain"},
                                  {"diffusers_ddpm", "diffusers_ddpm"},
                                  {"diffusers_resnet", "diffusers_resnet"},
                                  {"diffusers_sharded", "diffusers_sharded"},
                                  {"diffusers_one_sided", "diffusers_one_sided"},
                                  {"diffusers_old_names", "diffusers_old_names"},
                                  {"strided", "strided.pt", false}};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

ir::Graph forward_graph(const UNetConfig& unet, const ParameterLayout& layout) {
  constexpr int64_t kBatch = 2;
  ir::Graph graph("forward");
  ir::Builder build(graph);
  UNetInputs inputs;
  const auto image = [&](int64_t channels) {
    return ir::Type{ir::DType::f32, {kBatch, unet.image_height, unet.image_width, channels}};
  };
  const ir::Value all = build.input("x", image(unet.input_channels()));
  inputs.x = build.slice(all, 3, 0, unet.image_channels);
  if (unet.conditioning_channels > 0) {
    inputs.conditioning = build.slice(all, 3, unet.image_channels, unet.input_channels());
  }
  inputs.timesteps = build.input("timesteps", {ir::DType::f32, {kBatch}});
  if (unet.num_classes > 0) inputs.labels = build.input("label", {ir::DType::i32, {kBatch}});
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

class WeightsOracle : public ::testing::TestWithParam<Case> {
 protected:
  fs::path file() {
    if (!GetParam().file.empty()) return kFolder / GetParam().file;
    const fs::path path = folder_.path() / "unet_cu.bin";
    write_unet_cu(path, /*moments=*/true);
    return path;
  }
  TrainedModel open() { return TrainedModel::open(file(), "--from", options()); }
  WeightsOptions options() const {
    WeightsOptions options;
    if (!GetParam().described) options.config = kFolder / (GetParam().name + ".toml");
    return options;
  }
  /// The output of a model on the CPU backend.
  std::vector<float> output_of(const TrainedModel& model) {
    const UNetConfig& unet = model.config().unet;
    const ParameterLayout layout = parameter_layout(unet);
    const auto executor = runtime::compile(forward_graph(unet, layout), ir::Options{}, kThreads, {});
    return run(*executor, golden_, unet, model.parameters(model.default_weights(), layout));
  }

  test::TempFolder folder_;
  runtime::SafetensorsReader golden_ = golden_of(GetParam().name);
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
  expect_output(output_of(TrainedModel::open(target, "--from", {})), golden_);
}

TEST(EmulatedWeightsOracle, OddPaddingAndTransposedConvolutions) {
  for (const auto& [name, file] : {std::pair{"diffusers_ddpm", "diffusers_ddpm"}, std::pair{"strided", "strided.pt"}}) {
    SCOPED_TRACE(name);
    WeightsOptions options;
    if (std::string(name) == "strided") options.config = kFolder / "strided.toml";
    const TrainedModel model = TrainedModel::open(kFolder / file, "--from", options);
    const UNetConfig& unet = model.config().unet;
    const ParameterLayout layout = parameter_layout(unet);
    auto plan = runtime::plan_cuda(forward_graph(unet, layout), ir::Options{}, *ir::find_device_spec("h100"), {});
    testing::EmulatedExecutor executor(std::move(plan));
    const runtime::SafetensorsReader golden = golden_of(name);
    expect_output(run(executor, golden, unet, model.parameters("raw", layout)), golden);
  }
}

class GpuWeightsOracle : public ::testing::TestWithParam<Case> {};

TEST_P(GpuWeightsOracle, TheGpuGivesPyTorchsOutput) {
  DIFUSE_NEED_GPU(gpu);
  if (GetParam().file.empty()) GTEST_SKIP() << "its file is made by the CPU's test";
  WeightsOptions options;
  if (!GetParam().described) options.config = kFolder / (GetParam().name + ".toml");
  const TrainedModel model = TrainedModel::open(kFolder / GetParam().file, "--from", options);
  const UNetConfig& unet = model.config().unet;
  const ParameterLayout layout = parameter_layout(unet);
  const auto executor = runtime::compile(forward_graph(unet, layout), ir::Options{}, gpu, {});
  const runtime::SafetensorsReader golden = golden_of(GetParam().name);
  expect_output(run(*executor, golden, unet, model.parameters("raw", layout)), golden);
}

const auto kCaseName = [](const auto& c) { return c.param.name; };
INSTANTIATE_TEST_SUITE_P(Files, WeightsOracle, ::testing::ValuesIn(kCases), kCaseName);
INSTANTIATE_TEST_SUITE_P(Files, GpuWeightsOracle, ::testing::ValuesIn(kCases), kCaseName);

}  // namespace
}  // namespace difuse::models
