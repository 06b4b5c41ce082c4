// What is drawn from weights of other programs, against trajectories of PyTorch in float64 by those programs' own
// formulas (tests/golden/weights/trajectories.py).
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ir/reference.h"
#include "models/config/config_json.h"
#include "models/low_res.h"
#include "models/sampler.h"
#include "models/unet.h"
#include "runtime/compile.h"
#include "tests/models/foreign_models.h"
#include "tests/models/tolerance.h"
#include "tests/support/backend/emulated_executor.h"
#include "tests/support/backend/gpu.h"
#include "tests/support/temp_folder.h"

namespace difuse::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kOutputTolerance = 1e-5, kTrajectoryTolerance = 2e-5, kGpuTrajectoryTolerance = 1e-3;

fs::path trajectory_path(const std::string& name) { return kForeignFolder / (name + ".trajectory.safetensors"); }

/// Those whose golden has that tensor.
std::vector<ForeignModel> models_with(const char* tensor) {
  std::vector<ForeignModel> models = kForeignModels;
  std::erase_if(models, [tensor](const ForeignModel& model) {
    const fs::path path = trajectory_path(model.name);
    return !fs::exists(path) || runtime::SafetensorsReader(path).find(tensor) == nullptr;
  });
  return models;
}

std::vector<double> as_doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }

class Trajectory : public ::testing::TestWithParam<ForeignModel> {
 protected:
  json metadata(const char* key) const {
    const auto found = golden_.metadata().find(key);
    return found == golden_.metadata().end() ? json() : json::parse(found->second);
  }
  /// The process that the files say, with what the golden changes.
  DiffusionConfig diffusion(const json& changes) const {
    json fields = config_to_json(model_.config().diffusion);
    fields.update(changes);
    return config_from_json<DiffusionConfig>(fields, "the golden's process");
  }
  SamplerConfig sampler(const json& said) const {
    SamplerConfig config;
    config.kind = parse_sampler_kind(said.at("kind").get<std::string>()).value();
    config.steps = said.at("steps").get<int64_t>();
    config.spacing = parse_spacing(said.at("spacing").get<std::string>()).value();
    config.clipping = parse_clipping(said.at("clipping").get<std::string>()).value();
    config.churn = said.value("churn", 0.0);
    config.batch = 2;  // The golden has 3 images: a batch and an unfilled one.
    return config;
  }
  std::vector<float> draw(Sampler& compiled) const {
    DrawRequest request{parameters_, golden_seed(), image_numbers(0, 3), {}, low_res_};
    const int64_t classes = model_.config().unet.num_classes;
    if (classes > 0) request.classes = {0, static_cast<int32_t>(classes - 1)};
    return compiled.draw_exact(request);
  }
  uint64_t golden_seed() const { return std::stoull(golden_.metadata().at("seed")); }

  /// The images on a device.
  void expect_images(const Backend& backend, double tolerance) const {
    const json said = metadata("sampler");
    const UNetConfig& unet = model_.config().unet;
    Sampler compiled(unet, diffusion(metadata("diffusion")), sampler(said), {}, backend);
    EXPECT_LT(ir::relative_error(as_doubles(draw(compiled)), as_doubles(values_of<float>(golden_, "images"))),
              tolerance);
  }

  test::TempFolder folder_;
  runtime::SafetensorsReader golden_{trajectory_path(GetParam().name)};
  TrainedModel model_ = open_foreign(GetParam(), folder_.path());
  std::vector<float> parameters_ = model_.parameters("raw", parameter_layout(model_.config().unet));
  std::vector<uint8_t> low_res_ =
      takes_low_res(model_.config().unet) ? values_of<uint8_t>(golden_, "low_res") : std::vector<uint8_t>();
};

TEST_P(Trajectory, TwentyStepsEndWherePyTorchsDo) { expect_images(Backend(kThreads), kTrajectoryTolerance); }

class EdmDenoiser : public Trajectory {};

// One step from sigma to 0 is the denoiser itself.
TEST_P(EdmDenoiser, RoundAForeignModel) {
  const std::vector<float> wanted = values_of<float>(golden_, "denoised");
  const json sigmas = metadata("sigmas");
  const DiffusionConfig edm = diffusion(json{{"process", "edm"}, {"schedule", "linear"}, {"prediction", "eps"}});
  SamplerConfig once = sampler({{"kind", "euler"}, {"steps", 1}, {"spacing", "karras"}, {"clipping", "none"}});
  Sampler compiled(model_.config().unet, edm, once, {}, Backend(kThreads));
  const size_t each = wanted.size() / sigmas.size();
  for (size_t i = 0; i < sigmas.size(); ++i) {
    once.sigma_max = sigmas[i].get<double>();
    compiled.use(once);
    const std::vector<double> part(wanted.begin() + static_cast<std::ptrdiff_t>(i * each),
                                   wanted.begin() + static_cast<std::ptrdiff_t>((i + 1) * each));
    EXPECT_LT(ir::relative_error(as_doubles(draw(compiled)), part), kOutputTolerance) << "sigma " << once.sigma_max;
  }
}

// guided-diffusion's area and bilinear interpolation.
TEST(LowResolution, OfATrainingIsMadeAndSeenAsPyTorchDoes) {
  const runtime::SafetensorsReader golden(trajectory_path("adm_upsampler"));
  UNetConfig unet;
  unet.image_height = unet.image_width = 8;
  unet.conditioning_channels = 3;
  ir::Graph graph("low_res");
  ir::Builder build(graph);
  const ir::Type type{ir::DType::f32, {2, 8, 8, 3}};
  graph.set_output("seen", conditioning_of(build, unet, build.input("whole", type)));
  const auto expect_seen = [&](runtime::Executor& executor) {
    executor.write_input("whole", golden.bytes("whole"));
    executor.run();
    std::vector<float> found(static_cast<size_t>(type.elements()));
    executor.read_output("seen", std::as_writable_bytes(std::span(found)));
    EXPECT_LT(ir::relative_error(as_doubles(found), as_doubles(values_of<float>(golden, "conditioning"))), 1e-6);
  };
  expect_seen(*runtime::compile(graph, ir::Options{}, kThreads, {}));
  testing::EmulatedExecutor emulated(runtime::plan_cuda(graph, ir::Options{}, *ir::find_device_spec("h100"), {}));
  expect_seen(emulated);
}

class GpuTrajectory : public Trajectory {};

TEST_P(GpuTrajectory, TwentyStepsEndWherePyTorchsDo) {
  DIFUSE_NEED_GPU(gpu);
  expect_images(Backend(gpu, passes::Precision::f32), kGpuTrajectoryTolerance);
}

const auto kModelName = [](const auto& made) { return made.param.name; };
INSTANTIATE_TEST_SUITE_P(Models, Trajectory, ::testing::ValuesIn(models_with("images")), kModelName);
INSTANTIATE_TEST_SUITE_P(Models, EdmDenoiser, ::testing::ValuesIn(models_with("denoised")), kModelName);
INSTANTIATE_TEST_SUITE_P(Models, GpuTrajectory, ::testing::ValuesIn(models_with("images")), kModelName);

}  // namespace
}  // namespace difuse::models
