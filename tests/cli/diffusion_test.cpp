// Processes, samplers and guidance with the real binary.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "runtime/png.h"
#include "tests/cli/failure.h"
#include "tests/cli/process.h"
#include "tests/cli/tiny_data.h"

namespace difuse::test {
namespace {

namespace fs = std::filesystem;

/// An EDM training with two classes and guidance.
class Diffusion : public ::testing::Test {
 protected:
  Diffusion() {
    write_images(folder_ / "data" / "cat", 12);
    write_images(folder_ / "data" / "dog", 12);
    const Outcome outcome = train({"--process", "edm", "--sigma-data", "0.6", "--steps", "8"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }

  Outcome train(const Words& more) const {
    Words words = train_words(folder_ / "data", run(), {"--class-from-folder", "--label-dropout", "0.2"});
    words.insert(words.end(), more.begin(), more.end());
    return difuse(words);
  }

  fs::path run() const { return folder_ / "run"; }

  Outcome call(const char* command, const Words& more) const {
    Words words = {command, "--checkpoint", run().string()};
    words.insert(words.end(), more.begin(), more.end());
    return difuse(words);
  }

  std::vector<uint8_t> draw(const Words& more) const {
    Words words = more;
    words.insert(words.end(), {"--out", (folder_ / "a.png").string()});
    const Outcome outcome = call("sample", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    return runtime::read_png(folder_ / "a.png").pixels;
  }

  TempFolder folder_;
};

TEST_F(Diffusion, TheCheckpointSaysHowToDraw) {
  const std::string shown = difuse({"inspect", run().string(), "--toml"}).out;
  for (const char* part : {"process = \"edm\"", "sigma_data = 0.6", "label_dropout = 0.2", "num_classes = 3"}) {
    EXPECT_CONTAINS(shown, part);
  }
  const Outcome printed = call("sample", {"--print-schedule"});
  EXPECT_EQ(printed.exit_code, 0) << printed.err;
  EXPECT_CONTAINS(printed.out, "edm process, heun sampler, 18 steps, karras spacing, 35 evaluations");
  EXPECT_EQ(std::ranges::count(printed.out, '\n'), 4 + 35);
  EXPECT_EQ(draw({"--n", "4"}), draw({"--n", "4", "--sampler", "heun", "--steps", "18", "--spacing", "karras"}));

  // A file of the whole configuration trains the same run; a resumed run says what contradicts it.
  write_file(folder_ / "a.toml", shown);
  const Outcome again =
      difuse(without(train_words(folder_ / "data", folder_ / "b",
                                 {"--config", (folder_ / "a.toml").string(), "--class-from-folder", "--steps", "8"}),
                     "--model"));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_TRUE(difuse({"inspect", (folder_ / "b").string(), "--toml"}).out == shown);
  EXPECT_EQ(train({"--resume", "--steps", "9"}).exit_code, 0);
  expect_refused(train({"--resume", "--steps", "10", "--process", "ddpm"}), 2,
                 {"--process ddpm", "contradicts", "edm"});
}

TEST_F(Diffusion, AnImageIsItsNumberInAnyListAndBatch) {
  for (const char* sampler : {"ddpm", "ddim", "euler", "heun", "dpm++2m"}) {
    const Words how = {"--sampler", sampler, "--steps", "5", "--guidance", "2", "--columns", "1"};
    const auto with = [&](Words more) {
      more.insert(more.end(), how.begin(), how.end());
      return draw(more);
    };
    const std::vector<uint8_t> seven = with({"--seeds", "7"});
    const std::vector<uint8_t> list = with({"--seeds", "3,6-8", "--batch", "3"});
    // Rows of a column of 8x8 images with a border of 2: the third.
    const auto row = [&](size_t image, size_t y, size_t x) { return list[(2 + image * 10 + y) * 12 + 2 + x]; };
    for (size_t y = 0; y < 8; ++y) {
      for (size_t x = 0; x < 8; ++x) ASSERT_EQ(row(2, y, x), seven[y * 8 + x]) << sampler;
    }
    EXPECT_EQ(with({"--first-index", "6", "--n", "2"}), with({"--seeds", "6,7"})) << sampler;
  }
}

TEST_F(Diffusion, GuidanceAndItsClasses) {
  const Words few = {"--n", "4", "--steps", "4"};
  const auto plain = draw(few);
  EXPECT_EQ(draw({"--n", "4", "--steps", "4", "--guidance", "1"}), plain);
  const auto guided = draw({"--n", "4", "--steps", "4", "--guidance", "4", "--class", "cat,dog"});
  EXPECT_NE(guided, plain);
  EXPECT_EQ(draw({"--n", "4", "--steps", "4", "--guidance", "4"}), guided);
  EXPECT_NE(draw({"--n", "4", "--steps", "4", "--guidance", "4", "--class", "cat"}), guided);
  EXPECT_NE(draw({"--n", "4", "--steps", "4", "--clip", "dynamic", "--percentile", "0.5"}), plain);
  expect_refused(call("sample", {"--out", (folder_ / "n.png").string(), "--class", "2"}), 2,
                 {"--class '2'", "0 to 1", "cat, dog"});
}

TEST_F(Diffusion, RefusesWhatHasNoMeaning) {
  const std::string out = (folder_ / "none.png").string();
  const auto refused = [&](Words words, const Words& parts) {
    words.insert(words.end(), {"--out", out});
    expect_refused(call("sample", words), 2, parts);
  };
  refused({"--steps", "1001"}, {"--steps 1001", "1000 timesteps"});
  refused({"--spacing", "trailing"}, {"trailing spacing", "karras"});
  refused({"--sampler", "dpm++2m", "--churn", "3"}, {"--churn", "--sampler dpm++2m", "heun"});
  refused({"--churn-max", "3"}, {"--churn-max", "--churn"});
  refused({"--sampler", "ddpm", "--eta", "1"}, {"--eta", "--sampler ddim"});
  refused({"--variance", "large"}, {"--variance", "--sampler heun"});
  refused({"--percentile", "0.9"}, {"--percentile", "--clip dynamic"});
  refused({"--spacing", "linear", "--rho", "5"}, {"--rho", "--spacing linear"});
  refused({"--sigma-min", "100"}, {"80 down to 100"});
  // What would leave the numbers that f32 holds, which is drawn in.
  refused({"--sigma-min", "1e-300"}, {"down to 1e-300", "--sigma-min from 1e-06"});
  refused({"--sigma-max", "1000001"}, {"sigma from 1000001", "up to 1000000"});
  refused({"--churn", "5", "--churn-noise", "1e38"}, {"--churn-noise", "0 to 1000"});
  refused({"--churn", "5", "--churn-min", "5", "--churn-max", "1"}, {"--churn-min 5", "--churn-max 1"});
  refused({"--seeds", "1,2", "--n", "2"}, {"--seeds", "--n"});
  refused({"--seeds", "5-3"}, {"'5-3'", "FIRST-LAST"});
  refused({"--seeds", "1,x"}, {"--seeds 'x'", "whole number"});
  EXPECT_FALSE(fs::exists(out));
  const fs::path run = folder_ / "other";
  const auto train_refused = [&](const Words& words, const Words& parts) {
    expect_refused(difuse(train_words(folder_ / "data", run, words)), 2, parts);
    EXPECT_FALSE(fs::exists(run));
  };
  train_refused({"--process", "edm", "--prediction", "v"}, {"--prediction v", "edm", "--process ddpm"});
  train_refused({"--process", "edm", "--schedule", "cosine"}, {"--schedule cosine", "edm"});
  train_refused({"--p-mean", "-1"}, {"--p-mean -1", "ddpm", "--process edm"});
  train_refused({"--label-dropout", "0.1", "--steps", "1"}, {"label_dropout = 0.1", "classes"});
}

TEST_F(Diffusion, IsVisualized) {
  const fs::path out = folder_ / "pictures";
  const Outcome all = call(
      "visualize", {"--data", (folder_ / "data").string(), "--out", out.string(), "--seeds", "0-2", "--steps", "6"});
  EXPECT_EQ(all.exit_code, 0) << all.err;
  EXPECT_EQ(runtime::read_png(out / "forward.png").height, 3 * 10 + 2);
  EXPECT_EQ(runtime::read_png(out / "forward.png").width, 10 * 10 + 2);
  EXPECT_EQ(runtime::read_png(out / "reverse.png").width, 6 * 10 + 2);
  EXPECT_EQ(runtime::read_png(out / "samplers.png").height, 16 * 10 + 2);
  for (const char* film : {"forward.webp", "reverse.webp"}) {
    EXPECT_EQ(read_file(out / film).substr(8, 8), "WEBPVP8X") << film;
    EXPECT_CONTAINS(all.out, (out / film).string());
  }
  EXPECT_CONTAINS(all.out, "row 9: heun, 5 steps, 9 evaluations");
  const fs::path less = folder_ / "less";
  EXPECT_CONTAINS(call("visualize", {"--out", less.string(), "--only", "reverse", "--seeds", "5"}).out, "reverse.webp");
  EXPECT_EQ(std::distance(fs::directory_iterator(less), {}), 2);
  expect_refused(call("visualize", {"--out", (folder_ / "x").string(), "--only", "forward"}), 2, {"--data"});
  EXPECT_FALSE(fs::exists(folder_ / "x"));
}

TEST_F(Diffusion, AVisualizationThatIsStoppedLeavesNoFolder) {
  const fs::path out = folder_ / "new" / "pictures";
  Process process({"visualize", "--checkpoint", run().string(), "--out", out.string(), "--only", "reverse", "--steps",
                   "1000", "--threads", "1"});
  ASSERT_TRUE(process.wait_for_output("at step 8", 60));
  process.send(SIGTERM);
  const Outcome stopped = process.wait();
  EXPECT_EQ(stopped.exit_code, 128 + SIGTERM) << stopped.out << stopped.err;
  EXPECT_FALSE(fs::exists(folder_ / "new"));
}

TEST(FewTimesteps, AreVisualized) {
  const TempFolder folder;
  const std::string run = (folder / "run").string(), out = (folder / "v").string();
  write_idx(folder / "t-images-idx3-ubyte", 12);
  const Outcome trained = difuse(
      train_words(folder / "t-images-idx3-ubyte", run, {"--schedule", "cosine", "--timesteps", "2", "--steps", "1"}));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const Outcome shown = difuse({"visualize", "--checkpoint", run, "--seeds", "0", "--out", out});
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  EXPECT_CONTAINS(shown.out, "row 4: dpm++2m, 2 steps");
  EXPECT_EQ(runtime::read_png(folder / "v" / "samplers.png").height, 4 * 10 + 2);  // One row a sampler.
}

TEST(LabelDropout, TakesOneClassMoreThanTheData) {
  const TempFolder folder;
  write_idx(folder / "t-images-idx3-ubyte", 12);
  write_idx_labels(folder / "t-labels-idx1-ubyte", std::array<uint8_t, 12>{0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2});
  const auto train = [&](const char* classes) {
    return difuse(train_words(folder / "t-images-idx3-ubyte", folder / "run",
                              {"--classes", classes, "--label-dropout", "0.2", "--steps", "1"}));
  };
  expect_refused(train("3"), 2, {"labels go to 2", "the last stands for no label", "give --classes 4"});
  EXPECT_EQ(train("4").exit_code, 0);
}

/// Its network takes the time as one more channel, beside pixels of about 1.
TEST(StridedModel, SeesATimeOfItsPixelsSize) {
  const TempFolder folder;
  write_idx(folder / "t-images-idx3-ubyte", 16, 28, 28);
  const auto train = [&](const char* name, Words more) {
    more.insert(more.end(), {"--model", "mnist-strided", "--batch", "16", "--steps", "1"});
    const Outcome outcome =
        difuse(without(train_words(folder / "t-images-idx3-ubyte", folder / name, more), "--model"));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    const auto line = nlohmann::json::parse(read_file(folder / name / "metrics.jsonl"));
    EXPECT_LT(line.at("loss").get<double>(), 10) << name;
    return difuse({"inspect", (folder / name).string(), "--toml"}).out;
  };
  EXPECT_CONTAINS(train("edm", {}), "process = \"edm\"");
  const std::string ddpm = train("ddpm", {"--process", "ddpm"});
  EXPECT_CONTAINS(ddpm, "process = \"ddpm\"");
  EXPECT_CONTAINS(ddpm, "unit_timesteps = true");
  const Outcome rows =
      difuse({"sample", "--checkpoint", (folder / "ddpm").string(), "--steps", "1", "--print-schedule"});
  EXPECT_CONTAINS(rows.out, "       0.999 ");  // Timestep 999 of 1000.
}

TEST_F(Diffusion, IsComparedAcrossBackends) {
  const Outcome table = call("bench", {"--backends", "--steps", "2", "--batch", "3"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  for (const char* part : {"CPU, reference, fp64", "CPU, unfused, f32", "CPU, fused, f32", "1.0x", "3 images"}) {
    EXPECT_CONTAINS(table.out, part);
  }
  expect_refused(difuse({"bench", "--backends"}), 2, {"--checkpoint"});
  expect_refused(call("bench", {"--model", "tiny"}), 2, {"--checkpoint", "--backends"});
  expect_refused(call("bench", {"--backends", "--model", "tiny"}), 2, {"--model", "--backends"});
}

}  // namespace
}  // namespace difuse::test
