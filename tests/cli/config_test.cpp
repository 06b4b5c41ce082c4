// TOML files, and what wins over what.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <sstream>

#include "tests/cli/failure.h"
#include "tests/cli/process.h"
#include "tests/cli/tiny_data.h"

namespace difuse::test {
namespace {

namespace fs = std::filesystem;

class Config : public ::testing::Test {
 protected:
  Config() { write_idx(data(), 40); }

  fs::path data() const { return folder_ / "blobs-idx3-ubyte"; }
  fs::path file() const { return folder_ / "a.toml"; }
  fs::path run(const char* name = "a") const { return folder_ / name; }
  std::string checkpoint(const char* name = "a") const { return read_file(run(name) / "checkpoint.safetensors"); }

  /// `difuse train` without a preset.
  Outcome train(const Words& more, const char* name = "a") const {
    return difuse(without(train_words(data(), run(name), more), "--model"));
  }
  void trains(const Words& more, const char* name = "a") {
    last_ = train(more, name);
    ASSERT_EQ(last_.exit_code, 0) << last_.out << last_.err;
  }

  /// A number of every line of a run's metrics.
  std::vector<double> metrics(const char* name, const char* field) const {
    std::vector<double> values;
    std::istringstream lines(read_file(run(name) / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      values.push_back(nlohmann::json::parse(line).at(field).get<double>());
    }
    return values;
  }

  TempFolder folder_;
  Outcome last_;
};

TEST_F(Config, APrintedPresetIsThePreset) {
  for (const char* preset : {"tiny", "mnist-small", "adm-imagenet64"}) {
    const Outcome printed = difuse({"inspect", preset, "--toml"});
    ASSERT_EQ(printed.exit_code, 0) << printed.err;
    write_file(file(), printed.out);
    EXPECT_EQ(difuse({"inspect", file().string(), "--toml"}).out, printed.out);
  }
  write_file(file(), difuse({"inspect", "tiny", "--toml"}).out);
  trains({"--config", file().string(), "--steps", "3"});
  EXPECT_EQ(difuse(train_words(data(), run("b"), {"--steps", "3"})).exit_code, 0);
  EXPECT_TRUE(checkpoint() == checkpoint("b"));
  // So does what a checkpoint was trained with, but for the flags: it says batch 8.
  const Outcome printed = difuse({"inspect", run().string(), "--toml"});
  EXPECT_EQ(printed.exit_code, 0) << printed.err;
  EXPECT_CONTAINS(printed.out, "preset = \"tiny\"");
  EXPECT_CONTAINS(printed.out, "model_channels = 32");
  EXPECT_CONTAINS(difuse({"inspect", file().string()}).out, "GFLOP");
}

TEST_F(Config, FlagsWinOverTheFileAndTheFileOverThePreset) {
  write_file(file(),
             "preset = \"tiny\"\n[training]\nbatch = 5\nlearning_rate = 0.5\n[diffusion]\nschedule = 'cosine'\n");
  trains({"--config", file().string(), "--steps", "1", "--batch", "4", "--lr", "0.25"});
  const std::string shown = difuse({"inspect", run().string(), "--toml"}).out;
  for (const char* part : {"\nbatch = 4\n", "\nlearning_rate = 0.25\n", "\nschedule = \"cosine\"\n", "groups = 8"}) {
    EXPECT_CONTAINS(shown, part);
  }
  // The same words again go on; a changed line does not.
  trains({"--config", file().string(), "--steps", "2", "--batch", "4", "--lr", "0.25", "--resume"});
  write_file(file(), "preset = \"tiny\"\n[diffusion]\ntimesteps = 500\n");
  expect_refused(train({"--config", file().string(), "--steps", "3", "--batch", "4", "--resume"}), 2,
                 {"'" + file().string() + "' line 3: timesteps = 500", "contradicts", "1000"});
  write_file(file(), "preset = \"mnist-small\"\n");
  expect_refused(train({"--config", file().string(), "--steps", "3", "--batch", "4", "--resume"}), 2,
                 {"line 1: preset = \"mnist-small\"", "contradicts", "tiny"});
}

TEST_F(Config, AModelOfItsOwn) {
  write_file(file(), R"([model]
image_height = 8
image_width = 8
image_channels = 1
model_channels = 16
channel_mult = [1, 1.5]
num_res_blocks = 1
groups = 4
[training]
ema_decays = []
)");
  trains({"--config", file().string(), "--steps", "2", "--sample-every", "2"});
  EXPECT_CONTAINS(last_.out, "model: a.toml, ");
  EXPECT_CONTAINS(difuse({"inspect", run().string()}).out, "a.toml");
}

struct Mistake {
  const char* name;
  const char* text;
  Words message;
};

class Mistakes : public ::testing::TestWithParam<Mistake> {};

TEST_P(Mistakes, AreNamedWithTheirLine) {
  const TempFolder folder;
  const fs::path file = folder / "a.toml";
  write_file(file, GetParam().text);
  Words parts = GetParam().message;
  parts.push_back(file.string());
  expect_refused(difuse({"train", "--config", file.string(), "--data", "x", "--out", (folder / "r").string()}), 2,
                 parts);
  expect_refused(difuse({"inspect", file.string()}), 2, parts);
  EXPECT_EQ(folder.entries(), 1u);
}

INSTANTIATE_TEST_SUITE_P(
    Files, Mistakes,
    ::testing::Values(
        Mistake{"UnknownKey",
                "[model]\ngroups = 8\nmodel_chanels = 32\n",
                {"line 3", "'model_chanels' in [model]", "did you mean 'model_channels'?", "dropout"}},
        Mistake{"UnknownTable", "\n[trainig]\nbatch = 8\n", {"line 2", "'trainig'", "did you mean 'training'?"}},
        Mistake{"KeyOutsideATable", "batch = 8\n", {"line 1", "key 'batch'", "training"}},
        Mistake{"KeyOfAnotherTable", "[model]\nbatch = 8\n", {"line 2", "'batch' in [model]"}},
        Mistake{"TextForANumber",
                "[model]\ngroups = \"8\"\n",
                {"line 2", "groups = \"8\" is not a whole number", "groups = 32"}},
        Mistake{"FractionForAWholeNumber", "[model]\ngroups = 8.5\n", {"line 2", "groups = 8.5", "whole number"}},
        Mistake{"NumberForAChoice", "[model]\nlearn_sigma = 1\n", {"line 2", "learn_sigma = 1", "true or false"}},
        Mistake{"UnknownChoice",
                "[diffusion]\nschedule = 'cosin'\n",
                {"line 2", "\"cosin\"", "\"linear\", \"scaled_linear\", \"cosine\""}},
        Mistake{"NumberForAList", "[model]\nchannel_mult = 2\n", {"line 2", "channel_mult = 2", "list"}},
        Mistake{"MixedList", "[model]\nchannel_mult = [1, 'two']\n", {"line 2", "channel_mult", "a number"}},
        Mistake{"Infinite", "[training]\nlearning_rate = inf\n", {"line 2", "learning_rate", "number"}},
        Mistake{"TableForAKey", "[model.groups]\nx = 1\n", {"groups = a table", "whole number"}},
        Mistake{"NumberForATable", "model = 3\n", {"line 1", "'model' is not a table", "[model]"}},
        Mistake{"NumberForThePreset", "preset = 3\n", {"line 1", "preset = 3"}},
        Mistake{"UnknownPreset", "preset = 'tinny'\n", {"line 1", "'tinny'", "mnist-small"}},
        Mistake{"TwiceTheSame", "[model]\ngroups = 8\ngroups = 4\n", {"line 3", "groups"}},
        Mistake{"NotToml", "[model\n", {"line 1"}}, Mistake{"NotText", "\xff\xfe\x00", {"line 1"}},
        Mistake{"MicrobatchDoesNotDivide", "[training]\nbatch = 10\nmicrobatch = 4\n", {"10 = 2 x 4 + 2"}}),
    [](const auto& row) { return row.param.name; });

TEST_F(Config, AMissingFile) {
  expect_refused(train({"--config", (folder_ / "no.toml").string()}), 2, {"no.toml", "does not exist"});
  expect_refused(difuse({"inspect", data().string(), "--toml"}), 2, {"--toml", "data"});
}

/// The rate of step i of `steps` with warm-up.
double cosine_rate(double rate, int i, int warmup, int steps) {
  return rate * std::min(1.0, (i + 1.0) / warmup) * (1 + std::cos(std::numbers::pi * i / steps)) / 2;
}

TEST_F(Config, ACosineRateWithWarmUpEndsAtTheLastStep) {
  const Words flags = {"--model", "tiny", "--lr-schedule", "cosine",      "--warmup",
                       "3",       "--lr", "0.0125",        "--log-every", "1"};
  const auto with = [&](Words more) {
    more.insert(more.end(), flags.begin(), flags.end());
    return more;
  };
  expect_refused(train(with({"--minutes", "1"})), 2, {"cosine", "--steps"});
  trains(with({"--steps", "8"}), "whole");
  const std::vector<double> rates = metrics("whole", "lr");
  ASSERT_EQ(rates.size(), 8u);
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(rates[static_cast<size_t>(i)], cosine_rate(0.0125, i, 3, 8), 1e-8) << i;

  // The schedule belongs to the run: an interruption changes nothing, and it has an end.
  write_file(file(), "[training]\ntotal_steps = 8\n");
  trains(with({"--steps", "4", "--config", file().string()}), "parts");
  trains({"--steps", "8", "--resume"}, "parts");
  EXPECT_TRUE(checkpoint("parts") == checkpoint("whole"));
  expect_refused(train({"--steps", "9", "--resume"}, "parts"), 2, {"--steps 9", "reaches 0 at step 8"});
  expect_refused(train({"--steps", "8", "--lr-schedule", "constant", "--resume"}, "parts"), 2,
                 {"--lr-schedule constant", "contradicts", "cosine"});
}

TEST_F(Config, MicroBatchesAreOneBatch) {
  const Words flags = {"--model", "tiny", "--steps", "6", "--log-every", "1", "--batch", "16", "--clip-norm", "1"};
  const auto with = [&](Words more) {
    more.insert(more.end(), flags.begin(), flags.end());
    return more;
  };
  trains(with({}), "whole");
  trains(with({"--microbatch", "4"}), "parts");
  EXPECT_CONTAINS(last_.out, "batch 16 (4 x 4)");
  for (const char* field : {"loss", "grad_norm"}) {
    const auto whole = metrics("whole", field), parts = metrics("parts", field);
    ASSERT_EQ(whole.size(), 6u);
    ASSERT_EQ(parts.size(), 6u);
    for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(parts[i], whole[i], 1e-3 * whole[i]) << field << i;
    EXPECT_NEAR(parts[0], whole[0], 2e-6 * whole[0]) << field;
  }
  EXPECT_CONTAINS(difuse({"inspect", run("parts").string()}).out, "images seen     96 of");
  EXPECT_FALSE(contains(checkpoint("parts"), "accumulated"));

  // A checkpoint lies between steps: going on is exact, and a whole batch in one part is no part.
  Words half = with({"--microbatch", "4"});
  half.insert(half.end(), {"--steps", "3"});  // The last of a flag counts.
  trains(half, "again");
  trains(with({"--microbatch", "4", "--resume"}), "again");
  EXPECT_TRUE(checkpoint("again") == checkpoint("parts"));
  trains(with({"--microbatch", "16"}), "one");
  EXPECT_TRUE(checkpoint("one") == checkpoint("whole"));
  expect_refused(train(with({"--microbatch", "8", "--resume"}), "parts"), 2,
                 {"--microbatch 8", "contradicts", "with 4"});
}

}  // namespace
}  // namespace difuse::test
