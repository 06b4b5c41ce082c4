// Mistakes that look like a choice: what a run forgets, takes in silently or waits for.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "models/checkpoint.h"
#include "tests/cli/failure.h"
#include "tests/cli/process.h"
#include "tests/cli/tiny_data.h"

namespace difuse::test {
namespace {

namespace fs = std::filesystem;

class Silently : public ::testing::Test {
 protected:
  Silently() { write_idx(data(), 40); }

  fs::path data() const { return folder_ / "blobs-idx3-ubyte"; }
  fs::path run(const char* name) const { return folder_ / name; }
  Outcome train(const char* name, const Words& more) const { return difuse(train_words(data(), run(name), more)); }
  static std::string bytes(const fs::path& run) { return read_file(run / "checkpoint.safetensors"); }

  TempFolder folder_;
};

TEST_F(Silently, AResumedRunKeepsItsDtype) {
  ASSERT_EQ(train("whole", {"--steps", "4", "--dtype", "bf16"}).exit_code, 0);
  ASSERT_EQ(train("parts", {"--steps", "2", "--dtype", "bf16"}).exit_code, 0);
  ASSERT_EQ(train("parts", {"--steps", "4", "--resume"}).exit_code, 0);
  EXPECT_TRUE(bytes(run("parts")) == bytes(run("whole")));
  const Outcome other = train("parts", {"--steps", "5", "--resume", "--dtype", "f32"});
  EXPECT_CONTAINS(other.out, "dtype: f32 instead of bf16 from step 4\n");
  EXPECT_FALSE(contains(train("parts", {"--steps", "6", "--resume"}).out, "instead of"));
}

TEST_F(Silently, ACosineRunEndsWhereItsRateDoes) {
  ASSERT_EQ(train("a", {"--steps", "3", "--lr-schedule", "cosine"}).exit_code, 0);
  const Outcome again = difuse(without(train_words(data(), run("a"), {"--resume"}), "--steps"));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_EQ(models::Checkpoint(run("a") / "checkpoint.safetensors").step(), 3);
  expect_refused(train("b", {"--steps", "5", "--lr-schedule", "cosine", "--warmup", "5"}), 2,
                 {"warm-up of 5 steps", "reaches 0 at step 5", "--warmup 2"});
}

TEST_F(Silently, ImagesBesideIdxDataAreSaidToBeIgnored) {
  write_images(folder_ / "both", 2);
  write_idx(folder_ / "both" / "train-images-idx3-ubyte", 40);
  const Outcome outcome = difuse(train_words(folder_ / "both", run("a"), {"--steps", "1"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_CONTAINS(outcome.out, "40 images of 8x8x1 from train-images-idx3-ubyte");
  EXPECT_CONTAINS(outcome.out, "ignored: ");
  EXPECT_CONTAINS(outcome.out, ".png");
}

TEST_F(Silently, ASecondPathIsNotTakenForTheFirst) {
  expect_refused(train("a", {"--steps", "1", "--data", (folder_ / "other").string()}), 2,
                 {"--data", "other", "is a second path"});
}

TEST_F(Silently, AConfigurationThatIsNoFileIsNotWaitedFor) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  fs::create_directory(folder_ / "folder");
  for (const char* name : {"pipe", "folder"}) {
    expect_refused(train("a", {"--steps", "1", "--config", (folder_ / name).string()}), 2, {name, "is no file"});
  }
}

TEST_F(Silently, AMistakeInAFileIsNotTheFlags) {
  write_file(folder_ / "a.toml", "[training]\nlearning_rate = -1\n");
  expect_refused(train("a", {"--steps", "1", "--config", (folder_ / "a.toml").string()}), 2,
                 {"--config", "a.toml", "learning rate is -1"});
}

TEST_F(Silently, OtherChannelsThanTheWeightsHave) {
  ASSERT_EQ(train("a", {"--steps", "1"}).exit_code, 0);
  expect_refused(train("b", {"--steps", "1", "--init", run("a").string(), "--channels", "3"}), 1,
                 {"--init", "is another model", "--allow-partial"});
}

TEST_F(Silently, LabelsMayBeDroppedBesideALearnedVariance) {
  write_images(folder_ / "classes" / "one", 6);
  write_images(folder_ / "classes" / "two", 6);
  write_file(folder_ / "a.toml", "preset = \"tiny\"\n[model]\nlearn_sigma = true\n");
  const Outcome outcome = difuse({"train", "--data", (folder_ / "classes").string(), "--config",
                                  (folder_ / "a.toml").string(), "--channels", "1", "--batch", "4", "--steps", "1",
                                  "--class-from-folder", "--label-dropout", "0.5", "--out", run("a").string()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

}  // namespace
}  // namespace difuse::test
