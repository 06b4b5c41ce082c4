// Weights of other programs with the real binary: converted, drawn from, trained on.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>

#include "runtime/png.h"
#include "runtime/safetensors.h"
#include "tests/cli/failure.h"
#include "tests/cli/process.h"
#include "tests/cli/tiny_data.h"
#include "tests/models/foreign_models.h"

namespace difuse::test {
namespace {

namespace fs = std::filesystem;

using models::kForeignFolder;

class Convert : public ::testing::Test {
 protected:
  Outcome run(Words words) {
    Outcome outcome = difuse(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    return outcome;
  }
  std::string draw(const fs::path& checkpoint, const Words& more = {}) {
    Words words = {"sample", "--checkpoint", checkpoint.string(), "--out", (folder_ / "a.png").string(), "--n", "2"};
    words.insert(words.end(), {"--steps", "3", "--threads", "1"});
    words.insert(words.end(), more.begin(), more.end());
    run(words);
    return read_file(folder_ / "a.png");
  }

  TempFolder folder_;
  const std::string pt_ = (kForeignFolder / "adm_plain.pt").string(),
                    toml_ = (kForeignFolder / "adm_plain.toml").string();
};

TEST_F(Convert, EveryFormatDrawsTheSameImages) {
  const std::string direct = draw(pt_, {"--config", toml_});
  const std::string checkpoint = (folder_ / "c.safetensors").string(), names = (folder_ / "n.safetensors").string();
  const std::string diffusers = (folder_ / "d").string();
  EXPECT_EQ(run({"convert", "--from", pt_, "--config", toml_, "--to", checkpoint}).last_line(), checkpoint);
  run({"convert", "--from", checkpoint, "--to", names, "--format", "safetensors"});
  run({"convert", "--from", checkpoint, "--to", diffusers, "--format", "diffusers"});
  EXPECT_EQ(draw(checkpoint), direct);
  EXPECT_EQ(draw(names, {"--config", toml_}), direct);
  EXPECT_EQ(draw(diffusers), direct);
  EXPECT_NE(run({"inspect", diffusers}).out.find("model_channels         8"), std::string::npos);
}

TEST_F(Convert, TrainingBeginsWithTheWeights) {
  write_images(folder_ / "images", 8);
  const auto train = [&](const std::string& out, const Words& more) {
    Words words = {"train", "--data", (folder_ / "images").string(), "--out", (folder_ / out).string(), "--steps", "1"};
    words.insert(words.end(), {"--batch", "4", "--lr", "1e-12", "--sample-every", "0", "--threads", "1"});
    words.insert(words.end(), {"--data-cache", (folder_ / "cache").string()});
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  };
  const Outcome outcome = train("a", {"--init", pt_, "--config", toml_});
  EXPECT_NE(outcome.out.find("begins with " + pt_ + " (raw weights)"), std::string::npos) << outcome.out;
  const std::string direct = draw(pt_, {"--config", toml_});
  EXPECT_EQ(draw(folder_ / "a"), direct);  // One step with next to no learning rate leaves it where it was.
  EXPECT_NE(train("b", {"--init", (folder_ / "a").string()}).out.find("(ema weights)"), std::string::npos);
  EXPECT_EQ(draw(folder_ / "b"), direct);
  run({"train", "--data", (folder_ / "images").string(), "--out", (folder_ / "a").string(), "--resume", "--steps", "2",
       "--data-cache", (folder_ / "cache").string()});
}

TEST_F(Convert, WeightsOfOneProcessBeginATrainingOfAnother) {
  // v prediction on a schedule of latent diffusion, which EDM has not.
  const std::string from = (kForeignFolder / "diffusers_ddpm").string(), out = (folder_ / "run").string();
  EXPECT_CONTAINS(run({"inspect", from, "--toml"}).out, "schedule = \"scaled_linear\"");
  write_images(folder_ / "images", 8, 8, 12);
  run({"train", "--data", (folder_ / "images").string(), "--init", from, "--process", "edm", "--out", out, "--steps",
       "1", "--batch", "4", "--sample-every", "0", "--data-cache", (folder_ / "cache").string()});
  const std::string shown = run({"inspect", out, "--toml"}).out;
  EXPECT_CONTAINS(shown, "process = \"edm\"");
  EXPECT_CONTAINS(shown, "prediction = \"eps\"");
  draw(out);
  // The same of a file.
  write_file(folder_ / "edm.toml", "[diffusion]\nprocess = \"edm\"\n");
  const std::string other = (folder_ / "other").string();
  run({"train", "--data", (folder_ / "images").string(), "--init", from, "--config", (folder_ / "edm.toml").string(),
       "--out", other, "--steps", "1", "--batch", "4", "--sample-every", "0", "--data-cache",
       (folder_ / "cache").string()});
  EXPECT_CONTAINS(run({"inspect", other, "--toml"}).out, "process = \"edm\"");
}

TEST_F(Convert, AUnetInItsOwnFolderKeepsItsSchedulerAndName) {
  const fs::path unet = folder_ / "pipe" / "unet";
  fs::create_directories(folder_ / "pipe" / "scheduler");
  fs::copy(kForeignFolder / "diffusers_plain", unet);
  fs::remove(unet / "scheduler_config.json");
  write_file(folder_ / "pipe" / "scheduler" / "scheduler_config.json",
             R"({"_class_name": "EDMEulerScheduler", "sigma_max": 40})");
  const Outcome outcome = difuse({"inspect", "."}, {}, unet);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.out, "taken for unet");
  EXPECT_CONTAINS(outcome.out, "--sigma-max 40");
}

TEST_F(Convert, TrainingReadsImagesOfUnetCu) {
  std::array<int32_t, 256> header = {20240620, 12, 1, 8, 8};
  std::array<float, 12 * 64> pixels{};
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<float>(i % 65) / 32 - 1;
  const fs::path data = folder_ / "images.bin";
  write_file(data, std::string(reinterpret_cast<const char*>(header.data()), sizeof header) +
                       std::string(reinterpret_cast<const char*>(pixels.data()), sizeof pixels));
  const Outcome outcome = run(train_words(data, folder_ / "run", {"--steps", "2"}));
  EXPECT_CONTAINS(outcome.out, "12 images of 8x8x1 from " + data.string() + " (unet.cu), no labels");
  EXPECT_CONTAINS(run({"inspect", data.string()}).out, "12 images of 8x8x1");
  header[1] = 13;
  write_file(data, std::string(reinterpret_cast<const char*>(header.data()), sizeof header));
  expect_refused(difuse(train_words(data, folder_ / "none", {"--steps", "2"})), 1, {"--data '", "is truncated"});
  EXPECT_FALSE(fs::exists(folder_ / "none"));
}

TEST_F(Convert, TensorsThatDoNotFitAreListed) {
  Words labelled = {"train",
                    "--data",
                    (folder_ / "images").string(),
                    "--out",
                    (folder_ / "a").string(),
                    "--init",
                    pt_,
                    "--config",
                    toml_,
                    "--steps",
                    "1",
                    "--batch",
                    "4",
                    "--class-from-folder",
                    "--data-cache",
                    (folder_ / "cache").string()};
  // Classes that the weights do not know: refused with the name and the cause, taken with --allow-partial.
  for (const char* name : {"a", "b", "c"}) write_images(folder_ / "images" / name, 4);
  const Outcome missing = difuse(labelled);
  EXPECT_EQ(missing.exit_code, 1) << missing.out << missing.err;
  EXPECT_NE(missing.err.find("missing    label_emb.weight [3, 32]"), std::string::npos) << missing.err;
  EXPECT_NE(missing.err.find("likely cause: the model has classes and the weights have none"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "a"));
  labelled.insert(labelled.end(), {"--allow-partial", "--sample-every", "0"});
  EXPECT_NE(run(labelled).out.find("missing    label_emb.weight"), std::string::npos);
}

/// A checkpoint of difuse is weights like any other.
TEST_F(Convert, WhatFitsOfACheckpointIsTaken) {
  const fs::path data = folder_ / "t-images-idx3-ubyte", old = folder_ / "old";
  write_idx(data, 12);
  write_idx_labels(folder_ / "t-labels-idx1-ubyte", std::array<uint8_t, 12>{0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1});
  run(train_words(data, old, {"--classes", "2", "--steps", "1"}));
  const auto begin = [&](const std::string& name, Words more) {
    more.insert(more.end(), {"--init", old.string(), "--steps", "1", "--lr", "1e-12"});
    return difuse(without(train_words(data, folder_ / name, more), "--model"));
  };
  const std::string refusal = "add --allow-partial to take what fits";
  const auto taken = [&](const std::string& name, Words more) {
    const Outcome refused = begin(name, more);
    EXPECT_EQ(refused.exit_code, 1) << refused.out;
    EXPECT_CONTAINS(refused.err, refusal);
    EXPECT_FALSE(fs::exists(folder_ / name));
    more.emplace_back("--allow-partial");
    const Outcome outcome = begin(name, more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_CONTAINS(taken("five", {"--classes", "5"}), "misshapen  label_emb.weight [2, 128], the model needs [5, 128]");
  EXPECT_CONTAINS(taken("none", {"--classes", "0"}), "left over  label_emb.weight [2, 128]");
  const std::string colour = taken("colour", {"--channels", "3"});
  EXPECT_CONTAINS(colour, "misshapen  input_blocks.0.0.weight [32, 1, 3, 3], the model needs [32, 3, 3, 3]");
  EXPECT_CONTAINS(colour, "misshapen  out.2.weight [1, 32, 3, 3], the model needs [3, 32, 3, 3]");
  // Everything else is the old one's average, which one step with next to no learning rate leaves where it was.
  const auto kernel = [&](const std::string& name, const std::string& set) {
    const runtime::SafetensorsReader file(folder_ / name / "checkpoint.safetensors");
    const auto bytes = file.bytes(set + "/middle_block.0.in_layers.2.weight");
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  for (const char* name : {"five", "none", "colour"}) EXPECT_EQ(kernel(name, "params"), kernel("old", "ema")) << name;
}

TEST_F(Convert, RefusalsThatNameTheFlag) {
  const std::string target = (folder_ / "c.safetensors").string();
  const auto refused = [&](const Words& more, const std::string& part) {
    Words words = {"convert"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = difuse(words);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    EXPECT_FALSE(fs::exists(target));
  };
  refused({"--to", target}, "difuse convert needs --from");
  refused({"--from", pt_}, "difuse convert needs --to");
  refused({"--from", pt_, "--to", target}, "open are image_height, image_width, num_heads, qkv_order");
  refused({"--from", (kForeignFolder / "adm_everything.pt").string(), "--config", toml_, "--to", target},
          "use_scale_shift_norm = false, and the weights have true");
  refused({"--from", pt_, "--to", target, "--model", "tiny"}, "--model tiny contradicts");
  refused({"--from", pt_, "--to", target, "--config", toml_, "--weights", "ema"}, "--weights 'ema' is unknown");
  refused({"--from", (folder_ / "none").string(), "--to", target}, "does not exist");
  refused({"--from", pt_, "--config", toml_, "--to", folder_.path().string()}, "exists and is not replaced");
}

}  // namespace
}  // namespace difuse::test
