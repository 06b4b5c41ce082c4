// Weights of other programs that are not quite what they should be, with the real binary: each is told for what it is.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "models/presets.h"
#include "models/unet.h"
#include "models/weights/export.h"
#include "models/weights/tensor_file.h"
#include "tests/cli/failure.h"
#include "tests/cli/process.h"
#include "tests/cli/tiny_data.h"
#include "tests/models/foreign_models.h"
#include "tests/support/file_size_limit.h"

namespace difuse::test {
namespace {

namespace fs = std::filesystem;
using namespace models;

using models::kForeignFolder;

class ForeignMistakes : public ::testing::Test {
 protected:
  using Shapes = std::map<std::string, std::vector<int64_t>>;

  /// A safetensors file with the names of adm_plain.pt, its shapes changed by `change`, and the numbers 0.01.
  std::string weights(const std::function<void(Shapes&)>& change) {
    Shapes shapes;
    const TensorFile plain = TensorFile::open(kForeignFolder / "adm_plain.pt");
    for (const auto& [name, tensor] : plain.tensors()) shapes[name] = tensor.shape;
    change(shapes);
    return write(shapes);
  }
  std::string write(const Shapes& shapes) {
    std::vector<std::vector<float>> values;
    std::vector<runtime::TensorEntry> entries;
    for (const auto& [name, shape] : shapes) {
      const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
      const std::vector<float>& kept = values.emplace_back(static_cast<size_t>(count), 0.01f);
      entries.push_back({name, runtime::TensorDType::f32, shape, std::as_bytes(std::span(kept))});
    }
    const fs::path path = folder_ / "w.safetensors";
    runtime::write_safetensors(path, {}, entries);
    return path.string();
  }

  Outcome convert(const std::string& from, const Words& more = {}) {
    fs::remove(folder_ / "c.safetensors");
    Words words = {"convert", "--from", from, "--to", (folder_ / "c.safetensors").string(), "--config", toml_};
    words.insert(words.end(), more.begin(), more.end());
    return difuse(words);
  }

  /// Refused with all of `parts`, and taken with --allow-partial, with the first of them listed.
  void expect_listed(const std::string& from, const Words& parts) {
    const Outcome refused = convert(from);
    EXPECT_EQ(refused.exit_code, 1) << refused.out;
    for (const std::string& part : parts) EXPECT_CONTAINS(refused.err, part);
    EXPECT_CONTAINS(refused.err, from);
    const Outcome taken = convert(from, {"--allow-partial"});
    EXPECT_EQ(taken.exit_code, 0) << taken.err;
    EXPECT_CONTAINS(taken.out, parts.front());
  }

  TempFolder folder_;
  const std::string toml_ = (kForeignFolder / "adm_plain.toml").string();
};

TEST_F(ForeignMistakes, OneTensorThatIsMissingOrMisshapenIsListed) {
  const std::string cause = "likely cause: these tensors were changed or left out";
  for (const char* name :
       {"input_blocks.0.0.weight", "out.2.weight", "time_embed.0.weight", "input_blocks.1.0.out_layers.3.weight",
        "input_blocks.1.0.emb_layers.1.weight", "output_blocks.1.0.in_layers.0.weight", "middle_block.1.qkv.weight"}) {
    SCOPED_TRACE(name);
    expect_listed(weights([&](Shapes& shapes) { shapes.erase(name); }), {std::string("missing    ") + name, "likely"});
    expect_listed(weights([&](Shapes& shapes) { shapes[name] = {5}; }),
                  {std::string("misshapen  ") + name + " [5], the model needs [", "likely"});
  }
  expect_listed(weights([](Shapes& shapes) { shapes["input_blocks.1.0.in_layers.2.weight"][0] = 9; }),
                {"misshapen  input_blocks.1.0.in_layers.2.weight", cause});
  expect_listed(weights([](Shapes& shapes) { shapes.erase("middle_block.1.qkv.weight"); }),
                {"missing    middle_block.1.qkv.weight", cause});
  expect_listed(weights([](Shapes& shapes) { shapes["middle_block.1.qkv.weight"][0] = 49; }),
                {"misshapen  middle_block.1.qkv.weight", cause});
  const Outcome other = convert(weights([](Shapes& shapes) {
    Shapes encoder;
    for (const auto& [name, shape] : shapes) {
      if (name.starts_with("input_blocks.0")) encoder[name] = shape;
    }
    shapes = encoder;
  }));
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_CONTAINS(other.err, "w.safetensors': the weights are not those of a UNet of guided-diffusion: there is no");
}

TEST_F(ForeignMistakes, CausesOfWhatIsMisshapenInDiffusersFolders) {
  const auto copy = [&](const std::string& key, const nlohmann::json& value) {
    const fs::path to = folder_ / "d";
    fs::remove_all(to);
    fs::copy(kForeignFolder / "diffusers_plain", to);
    nlohmann::json config = nlohmann::json::parse(read_file(to / "config.json"));
    config[key] = value;
    write_file(to / "config.json", config.dump());
    return difuse({"convert", "--from", to.string(), "--to", (folder_ / "c.safetensors").string()});
  };
  const nlohmann::json config = nlohmann::json::parse(read_file(kForeignFolder / "diffusers_plain" / "config.json"));
  std::vector<int64_t> widths = config["block_out_channels"];
  for (int64_t& width : widths) width *= 2;
  EXPECT_CONTAINS(copy("block_out_channels", widths).err, "likely cause: the weights have other widths");
  const bool shifts = config.value("resnet_time_scale_shift", "default") == "scale_shift";
  EXPECT_CONTAINS(copy("resnet_time_scale_shift", shifts ? "default" : "scale_shift").err, "scale and shift (");
}

TEST_F(ForeignMistakes, TheWeightsOfADiffusersFolderStandForIt) {
  const fs::path from = kForeignFolder / "diffusers_plain" / "diffusion_pytorch_model.safetensors";
  const Outcome shown = difuse({"inspect", from.string()});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_CONTAINS(shown.out, "a UNet2DModel of diffusers");
  const fs::path alone = folder_ / "other.safetensors";
  fs::copy(from, alone);
  expect_refused(difuse({"inspect", alone.string()}), 2, {"other.safetensors", "no config.json beside it"});
  write_file(folder_ / "config.json", "{}");
  expect_refused(difuse({"inspect", alone.string()}), 2, {"other.safetensors", folder_.path().string()});
}

TEST_F(ForeignMistakes, WhatTheProcessIsAndThatImagesAreLatentsIsSaid) {
  const fs::path unet = folder_ / "pipe" / "unet";
  fs::create_directories(folder_ / "pipe");
  fs::copy(kForeignFolder / "diffusers_plain", unet);
  const Outcome pictures = difuse({"inspect", (folder_ / "pipe").string()});
  EXPECT_CONTAINS(pictures.out, "process: ddpm, linear schedule of 1000 timesteps, prediction eps; the file does not");
  EXPECT_EQ(pictures.out.find("latents"), std::string::npos) << pictures.out;
  fs::create_directories(folder_ / "pipe" / "vqvae");
  const Outcome latents = difuse({"inspect", (folder_ / "pipe").string()});
  EXPECT_CONTAINS(latents.out, "latents of the autoencoder '");
  write_file(unet / "scheduler_config.json",
             R"({"_class_name": "DDIMScheduler", "timestep_spacing": "trailing", "prediction_type": "sample"})");
  const Outcome told = difuse({"inspect", unet.string()});
  EXPECT_CONTAINS(told.out, "process: ddpm, linear schedule of 1000 timesteps, prediction x0\n");
  EXPECT_CONTAINS(told.out, "difuse sample does with --sampler ddim --spacing trailing\n");
}

TEST_F(ForeignMistakes, HeadsAreAskedForUnlessTheyAreSaid) {
  std::string text = read_file(toml_);
  const std::string line = "num_heads = 2\n";
  text.erase(text.find(line), line.size());
  write_file(folder_ / "a.toml", text);
  const std::string config = (folder_ / "a.toml").string(), to = (folder_ / "c.safetensors").string();
  expect_refused(
      difuse({"convert", "--from", (kForeignFolder / "adm_plain.pt").string(), "--config", config, "--to", to}), 2,
      {"open are num_heads"});
}

TEST_F(ForeignMistakes, ChannelsThatAreNoPictureAndThoseThatMayBeTwoThings) {
  const auto widened = [&](int64_t in, int64_t out) {
    return weights([&](Shapes& shapes) {
      shapes["input_blocks.0.0.weight"][1] = in;
      shapes["out.2.weight"][0] = out;
      shapes["out.2.bias"][0] = out;
    });
  };
  std::string text = read_file(toml_);
  const auto with_channels = [&](int64_t channels) {
    std::string changed = text;
    const std::string line = "image_channels = 3\nconditioning_channels = 0\n";
    changed.replace(changed.find(line), line.size(),
                    fmt::format("image_channels = {}\nlow_res_factor = 4\n", channels));
    const std::string learned = "learn_sigma = false\n";
    changed.erase(changed.find(learned), learned.size());
    write_file(folder_ / "a.toml", changed);
    return (folder_ / "a.toml").string();
  };
  const std::string out = (folder_ / "a.png").string();
  expect_refused(difuse({"sample", "--checkpoint", widened(5, 5), "--config", with_channels(5), "--out", out}), 2,
                 {"w.safetensors", "5 channels", "1, 3 or 4"});
  expect_refused(difuse({"visualize", "--checkpoint", widened(5, 5), "--config", with_channels(5), "--out",
                         (folder_ / "v").string()}),
                 2, {"5 channels"});
  EXPECT_FALSE(fs::exists(folder_ / "v"));
  for (const int64_t channels : {1, 2}) {
    const Outcome shown = difuse({"convert", "--from", widened(2, 2), "--config", with_channels(channels), "--to",
                                  (folder_ / fmt::format("{}.safetensors", channels)).string()});
    EXPECT_EQ(shown.exit_code, 0) << shown.err;
    const std::string config =
        difuse({"inspect", (folder_ / fmt::format("{}.safetensors", channels)).string(), "--toml"}).out;
    EXPECT_CONTAINS(config, fmt::format("image_channels = {}\n", channels));
    EXPECT_CONTAINS(config, fmt::format("conditioning_channels = {}\n", 2 - channels));
    EXPECT_CONTAINS(config, channels == 1 ? "learn_sigma = true\n" : "learn_sigma = false\n");
  }
}

TEST_F(ForeignMistakes, AnExportThatFailsLeavesNothing) {
  const Preset tiny = find_preset("tiny");
  const ParameterLayout layout = parameter_layout(tiny.unet);
  const RunConfig config{{.model = "tiny", .version = "0"}, tiny.unet, tiny.diffusion, tiny.training};
  const fs::path from = folder_ / "a.safetensors", to = folder_ / "new" / "d";
  export_weights(WeightsFormat::difuse, from, config, layout, initial_parameters(layout, {1, 2}));
  const Words words = {"convert", "--from", from.string(), "--to", to.string(), "--format", "diffusers"};
  {
    const FileSizeLimit limit(8192);
    const Outcome failed = difuse(words);
    EXPECT_EQ(failed.exit_code, 1) << failed.out;
    EXPECT_CONTAINS(failed.err, "diffusion_pytorch_model.safetensors");
  }
  EXPECT_FALSE(fs::exists(folder_ / "new"));
  EXPECT_EQ(difuse(words).exit_code, 0);
  EXPECT_TRUE(fs::exists(to / "config.json"));
}

}  // namespace
}  // namespace difuse::test
