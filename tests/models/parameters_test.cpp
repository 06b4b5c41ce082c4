#include "models/parameters.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "models/presets.h"
#include "models/unet.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace difuse::models {
namespace {

int64_t count(const char* preset) { return parameter_layout(find_preset(preset).unet).parameters(); }

TEST(Parameters, CountsAreExact) {
  EXPECT_EQ(count("mnist-small"), 1112801);
  EXPECT_EQ(count("adm-seed64"), 20494211);
  EXPECT_EQ(count("ddpm-cifar10"), 35746307);
  EXPECT_EQ(count("adm-imagenet64"), 295904454);
  EXPECT_EQ(count("adm-imagenet128"), 421529606);
  EXPECT_EQ(count("adm-imagenet256"), 553838086);
  EXPECT_EQ(count("adm-imagenet256-uncond"), 552814086);
}

std::string listing(const ParameterLayout& layout) {
  std::string text;
  for (size_t i = 0; i < layout.specs().size(); ++i) {
    const ParameterSpec& spec = layout.specs()[i];
    text += fmt::format("{:>7} {} {}\n", layout.offsets()[i], spec.name, ir::to_string(spec.shape));
  }
  return text;
}

TEST(ParametersGolden, TinyNamesAndOrder) {
  tests::expect_golden("models/golden/tiny_parameters.txt", listing(parameter_layout(find_preset("tiny").unet)));
}

TEST(ParametersGolden, NamesOfResamplingBlocksAndClasses) {
  UNetConfig config = find_preset("tiny").unet;
  config.resblock_updown = true, config.use_scale_shift_norm = true, config.num_classes = 10;
  config.learn_sigma = true;
  tests::expect_golden("models/golden/tiny_conditional_parameters.txt", listing(parameter_layout(config)));
}

TEST(Parameters, NamesAreThoseOfGuidedDiffusion) {
  const ParameterLayout layout = parameter_layout(find_preset("adm-imagenet64").unet);
  auto shape = [&](const char* name) {
    const int at = layout.find(name);
    return at < 0 ? ir::Shape{-1} : layout.specs()[static_cast<size_t>(at)].shape;
  };
  EXPECT_EQ(shape("time_embed.0.weight"), (ir::Shape{768, 192}));
  EXPECT_EQ(shape("label_emb.weight"), (ir::Shape{1000, 768}));
  EXPECT_EQ(shape("input_blocks.0.0.weight"), (ir::Shape{192, 3, 3, 3}));
  EXPECT_EQ(shape("input_blocks.4.0.in_layers.2.weight"), (ir::Shape{192, 3, 3, 192}));  // downsampling block
  EXPECT_EQ(shape("input_blocks.5.0.emb_layers.1.weight"), (ir::Shape{768, 768}));
  EXPECT_EQ(shape("input_blocks.5.0.skip_connection.weight"), (ir::Shape{384, 1, 1, 192}));
  EXPECT_EQ(shape("input_blocks.5.1.qkv.weight"), (ir::Shape{1152, 1, 1, 384}));
  EXPECT_EQ(shape("middle_block.1.proj_out.bias"), (ir::Shape{768}));
  EXPECT_EQ(shape("output_blocks.3.2.out_layers.3.weight"), (ir::Shape{768, 3, 3, 768}));  // upsampling block
  EXPECT_EQ(shape("output_blocks.15.0.in_layers.0.weight"), (ir::Shape{384}));
  EXPECT_EQ(shape("out.0.weight"), (ir::Shape{192}));
  EXPECT_EQ(shape("out.2.weight"), (ir::Shape{6, 3, 3, 192}));
  EXPECT_EQ(layout.find("output_blocks.16.0.in_layers.0.weight"), -1);
  EXPECT_EQ(layout.find("input_blocks.1.1.qkv.weight"), -1);  // no attention at full size
}

TEST(Parameters, SlicesAreAlignedAndDoNotOverlap) {
  const ParameterLayout layout = parameter_layout(find_preset("mnist-small").unet);
  int64_t end = 0;
  for (size_t i = 0; i < layout.specs().size(); ++i) {
    EXPECT_EQ(layout.offsets()[i] % 64, 0);
    EXPECT_GE(layout.offsets()[i], end);
    EXPECT_LT(layout.offsets()[i], end + 64);
    end = layout.offsets()[i] + layout.specs()[i].elements();
    EXPECT_EQ(layout.find(layout.specs()[i].name), static_cast<int>(i));
  }
  EXPECT_EQ(layout.size() % 64, 0);
  EXPECT_LT(layout.size() - end, 64);
}

TEST(Parameters, StartAsPyTorchDoes) {
  UNetConfig config = find_preset("tiny").unet;
  config.num_classes = 10;
  const ParameterLayout layout = parameter_layout(config);
  const std::vector<float> flat = initial_parameters(layout, {1, 2});
  ASSERT_EQ(static_cast<int64_t>(flat.size()), layout.size());
  auto slice = [&](const char* name) {
    const auto i = static_cast<size_t>(layout.find(name));
    const auto begin = flat.begin() + layout.offsets()[i];
    return std::vector<float>(begin, begin + layout.specs()[i].elements());
  };
  auto largest = [](const std::vector<float>& v) {
    return *std::ranges::max_element(v, {}, [](float x) { return std::abs(x); });
  };
  auto mean_square = [](const std::vector<float>& v) {
    return std::inner_product(v.begin(), v.end(), v.begin(), 0.0) / static_cast<double>(v.size());
  };
  const double bound = 1 / std::sqrt(9 * 32.0);
  for (const char* name : {"input_blocks.1.0.in_layers.2.weight", "input_blocks.1.0.in_layers.2.bias"}) {
    EXPECT_LE(std::abs(largest(slice(name))), bound) << name;
    EXPECT_GT(std::abs(largest(slice(name))), 0.8 * bound) << name;
  }
  EXPECT_NEAR(mean_square(slice("input_blocks.1.0.in_layers.2.weight")), bound * bound / 3, 0.05 * bound * bound);
  EXPECT_NEAR(mean_square(slice("label_emb.weight")), 1, 0.15);
  for (const char* name : {"input_blocks.1.0.in_layers.0.weight", "out.0.weight", "middle_block.1.norm.weight"}) {
    EXPECT_TRUE(std::ranges::all_of(slice(name), [](float x) { return x == 1; })) << name;
  }
  for (const char* name : {"input_blocks.1.0.in_layers.0.bias", "input_blocks.1.0.out_layers.3.weight",
                           "input_blocks.1.0.out_layers.3.bias", "middle_block.1.proj_out.weight",
                           "middle_block.1.proj_out.bias", "out.2.weight", "out.2.bias"}) {
    EXPECT_TRUE(std::ranges::all_of(slice(name), [](float x) { return x == 0; })) << name;
  }
  EXPECT_EQ(flat, initial_parameters(layout, {1, 2}));
  EXPECT_NE(flat, initial_parameters(layout, {1, 3}));
}

TEST(Parameters, RefusesAnUnknownOrMisshapenParameter) {
  const ParameterLayout layout({{"a", {4, 3}, ParameterInit::zeros()}});
  ir::Graph graph;
  ir::Builder build(graph);
  PackedParameters parameters(build, layout, build.state("params", {ir::DType::f32, {layout.size()}}));
  EXPECT_CONTAINS(test::error_of([&] { parameters.get("b", {4, 3}, {}); }), "has no b");
  EXPECT_CONTAINS(test::error_of([&] { parameters.get("a", {3, 4}, {}); }), "a is [4, 3] in the parameter layout");
  EXPECT_CONTAINS(test::error_of([] { ParameterLayout({{"a", {1}, {}}, {"a", {1}, {}}}); }), "two parameters");
}

}  // namespace
}  // namespace difuse::models
