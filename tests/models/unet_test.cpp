#include "models/unet.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ir/verify.h"
#include "models/presets.h"
#include "tests/models/model_checks.h"
#include "tests/support/temp_folder.h"

namespace difuse::models {
namespace {

using ir::DType;

struct Forward {
  ir::Graph graph{"forward"};
  ParameterLayout layout;

  Forward(const UNetConfig& config, int64_t batch) : layout(parameter_layout(config)) {
    ir::Builder build(graph);
    UNetInputs inputs;
    inputs.x = build.input("x", {DType::f32, {batch, config.image_height, config.image_width, config.image_channels}});
    inputs.timesteps = build.input("t", {DType::f32, {batch}});
    if (config.num_classes > 0) inputs.labels = build.input("label", {DType::i32, {batch}});
    if (config.conditioning_channels > 0) {
      inputs.conditioning = build.input(
          "low", {DType::f32, {batch, config.image_height, config.image_width, config.conditioning_channels}});
    }
    PackedParameters parameters(build, layout, build.state("params", {DType::f32, {layout.size()}}));
    graph.set_output("out", build_unet(build, parameters, config, inputs));
  }
};

TEST(UNet, TimestepEmbedding) {
  for (int64_t channels : {32, 21}) {
    ir::Graph graph;
    ir::Builder build(graph);
    UNetConfig config;
    config.model_channels = channels;
    graph.set_output("out", timestep_embedding(build, build.input("t", {DType::f32, {4}}), config));
    const std::vector<double> t{0, 1, 500, 999};
    const ir::Tensor out = run_reference(graph, {{"t", tensor_f32({4}, t)}}, {}).outputs.at("out");
    ASSERT_EQ(out.type.shape, (ir::Shape{4, channels}));
    const int64_t half = channels / 2;
    for (int64_t n = 0; n < 4; ++n) {
      const double* row = out.data.data() + n * channels;
      for (int64_t i = 0; i < half; ++i) {
        const double angle =
            t[static_cast<size_t>(n)] * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
        EXPECT_NEAR(row[i], std::cos(angle), 1e-11);
        EXPECT_NEAR(row[half + i], std::sin(angle), 1e-11);
      }
      if (channels % 2 != 0) {
        EXPECT_EQ(row[channels - 1], 0);
      }
    }
  }
}

TEST(UNet, ShapesOfEveryPreset) {
  for (const Preset& preset : presets()) {
    const Forward forward(preset.unet, 3);
    ir::verify(forward.graph);
    const UNetConfig& c = preset.unet;
    EXPECT_EQ(forward.graph.type(forward.graph.outputs()[0].value),
              (ir::Type{DType::f32, {3, c.image_height, c.image_width, c.out_channels()}}))
        << preset.name;
  }
}

TEST(UNet, NonSquareAndOddShapes) {
  UNetConfig config = all_features();
  ir::verify(Forward(config, 1).graph);
  config.image_height = 48, config.image_width = 80;
  config.model_channels = 20, config.groups = 10, config.num_head_channels = 0;
  ir::verify(Forward(config, 13).graph);
}

TEST(UNet, OperationsOfTheForward) {
  EXPECT_NEAR(static_cast<double>(forward_flops(find_preset("adm-seed64").unet)), 12.92e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(forward_flops(find_preset("ddpm-cifar10").unet)), 12.44e9, 0.005e9);
  EXPECT_NEAR(static_cast<double>(forward_flops(find_preset("adm-imagenet64").unet)), 219.4e9, 0.05e9);
  EXPECT_LE(forward_flops(find_preset("fashion-demo").unet), 200'000'000);
}

TEST(UNet, PredictsZeroAtTheStart) {
  const Forward forward(find_preset("tiny").unet, 2);
  const std::vector<float> initial = initial_parameters(forward.layout, {3, 4});
  const ir::Tensor params = tensor_f32({forward.layout.size()}, {initial.begin(), initial.end()});
  TestNumbers numbers(5);
  const ir::TensorMap inputs{{"x", tensor_f32({2, 8, 8, 1}, numbers.vector(128))}, {"t", tensor_f32({2}, {3, 800})}};
  const ir::ReferenceResult result = run_reference(forward.graph, inputs, {{"params", params}});
  for (double y : result.outputs.at("out").data) EXPECT_EQ(y, 0);
}

TEST(UNet, EveryInputMatters) {
  const UNetConfig config = all_features();
  const Forward forward(config, 1);
  const ir::TensorMap states{
      {"params", tensor_f32({forward.layout.size()}, parameters_without_zeros(forward.layout, 1))}};
  TestNumbers numbers(6);
  ir::TensorMap inputs{{"x", tensor_f32({1, 8, 12, 2}, numbers.vector(192))},
                       {"t", tensor_f32({1}, {250})},
                       {"label", index_tensor(1, 1)}};
  auto run = [&] { return run_reference(forward.graph, inputs, states).outputs.at("out").data; };
  const std::vector<double> base = run();
  inputs["t"].data[0] = 251;
  const std::vector<double> other_time = run();
  inputs["t"].data[0] = 250;
  EXPECT_GT(ir::relative_error(other_time, base), 1e-6);
  inputs["label"].data[0] = 2;
  EXPECT_GT(ir::relative_error(run(), base), 1e-3);
  inputs["label"].data[0] = 1;
  EXPECT_EQ(run(), base);
}

TEST(UNet, RefusesInputsThatDoNotFit) {
  const UNetConfig config = find_preset("tiny").unet;
  ir::Graph graph;
  ir::Builder build(graph);
  ParameterCollector parameters(build);
  UNetInputs inputs;
  EXPECT_CONTAINS(test::error_of([&] { build_unet(build, parameters, config, inputs); }), "x must be an image");
  inputs.x = build.input("x", {DType::f32, {2, 8, 8, 3}});
  EXPECT_CONTAINS(test::error_of([&] { build_unet(build, parameters, config, inputs); }), "x must be f32[2, 8, 8, 1]");
  inputs.x = build.input("y", {DType::f32, {2, 8, 8, 1}});
  EXPECT_CONTAINS(test::error_of([&] { build_unet(build, parameters, config, inputs); }),
                  "timesteps must be f32[2], is missing");
}

}  // namespace
}  // namespace difuse::models
