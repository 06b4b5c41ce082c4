// Training with the real binary: what it writes, and that it goes on exactly.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <thread>

#include "models/checkpoint.h"
#include "runtime/png.h"
#include "tests/cli/failure.h"
#include "tests/cli/process.h"
#include "tests/cli/tiny_data.h"

namespace difuse::test {
namespace {

namespace fs = std::filesystem;

class Train : public ::testing::Test {
 protected:
  Train() { write_idx(data(), 40); }

  fs::path data() const { return folder_ / "blobs-idx3-ubyte"; }
  fs::path run(const char* name) const { return folder_ / name; }
  static fs::path checkpoint(const fs::path& run) { return run / "checkpoint.safetensors"; }

  /// Trains into the folder `name`; the checkpoint's bytes.
  std::string train(const char* name, const Words& more) {
    last_ = difuse(train_words(data(), run(name), more));
    EXPECT_EQ(last_.exit_code, 0) << last_.out << last_.err;
    return read_file(checkpoint(run(name)));
  }

  TempFolder folder_;
  Outcome last_;
};

TEST_F(Train, WritesCheckpointMetricsAndSamples) {
  const std::string bytes = train("a", {"--steps", "20", "--sample-every", "20"});
  EXPECT_FALSE(bytes.empty());
  EXPECT_TRUE(last_.out.starts_with("CPU backend: ")) << last_.out;
  EXPECT_CONTAINS(last_.out, "2 threads");
  EXPECT_CONTAINS(last_.out, "step 20/20");
  EXPECT_EQ(last_.last_line(), checkpoint(run("a")).string());

  std::istringstream metrics(read_file(run("a") / "metrics.jsonl"));
  int64_t step = 0;
  double first_loss = 0, last_loss = 0;
  for (std::string line; std::getline(metrics, line);) {
    const auto object = nlohmann::json::parse(line);
    for (const char* field : {"loss", "grad_norm", "lr", "images_per_second", "seconds"}) {
      EXPECT_TRUE(object.at(field).is_number()) << line;
    }
    if (step == 0) first_loss = object.at("loss").get<double>();
    step = object.at("step").get<int64_t>();
    last_loss = object.at("loss").get<double>();
  }
  EXPECT_EQ(step, 20);
  EXPECT_LT(last_loss, first_loss);

  const runtime::Image grid = runtime::read_png(run("a") / "samples" / "step_000020.png");
  EXPECT_EQ(grid.width, 4 * (8 + 2) + 2);

  const Outcome inspected = difuse({"inspect", run("a").string()});
  EXPECT_EQ(inspected.exit_code, 0) << inspected.err;
  for (const char* part : {"step            20", "tiny, seed 7", "GFLOP", "channel_mult", "out.2.weight"}) {
    EXPECT_CONTAINS(inspected.out, part);
  }
}

TEST_F(Train, ResumesToTheSameBytes) {
  const std::string whole = train("whole", {"--steps", "20"});
  train("parts", {"--steps", "10"});
  EXPECT_TRUE(train("parts", {"--steps", "20", "--resume"}) == whole);
}

TEST_F(Train, ResumesFromARenamedCheckpointInAnotherFolder) {
  const std::string whole = train("whole", {"--steps", "20", "--flip", "--threads", "1"});
  train("first", {"--steps", "10", "--flip"});
  fs::rename(checkpoint(run("first")), folder_ / "anything.bin");
  fs::remove_all(run("first"));
  // Neither the model nor anything else that the checkpoint says has to be repeated.
  last_ = difuse({"train", "--resume", (folder_ / "anything.bin").string(), "--data", data().string(), "--out",
                  run("second").string(), "--steps", "20", "--sample-every", "0", "--threads", "2"});
  ASSERT_EQ(last_.exit_code, 0) << last_.out << last_.err;
  EXPECT_TRUE(read_file(checkpoint(run("second"))) == whole);
}

TEST_F(Train, ThreadsChangeNoBit) {
  EXPECT_TRUE(train("one", {"--steps", "6", "--threads", "1"}) == train("two", {"--steps", "6", "--threads", "2"}));
}

TEST_F(Train, FlagsChangeTheRun) {
  const std::string plain = train("plain", {"--steps", "2"});
  EXPECT_TRUE(plain == train("again", {"--steps", "2"}));
  EXPECT_FALSE(plain == train("seed", {"--steps", "2", "--seed", "8"}));
  EXPECT_FALSE(plain == train("lr", {"--steps", "2", "--lr", "1e-4"}));
  EXPECT_CONTAINS(train("averages", {"--steps", "2", "--ema", "0.9,0.99"}), "ema_1/out.2.weight");
}

TEST_F(Train, KeepsTheLastCheckpoints) {
  train("a", {"--steps", "10", "--save-every", "2", "--keep-last", "2"});
  const fs::path numbered = run("a") / "checkpoints";
  EXPECT_FALSE(fs::exists(numbered / "step_00000006.safetensors"));
  EXPECT_TRUE(fs::exists(numbered / "step_00000008.safetensors"));
  EXPECT_TRUE(read_file(numbered / "step_00000010.safetensors") == read_file(checkpoint(run("a"))));

  // An older one goes on as well; so does a folder without the latest.
  const std::string whole = train("whole", {"--steps", "10"});
  fs::remove(checkpoint(run("a")));
  fs::remove(numbered / "step_00000010.safetensors");
  EXPECT_TRUE(train("a", {"--steps", "10", "--resume"}) == whole);
}

TEST_F(Train, MinutesAreANormalStop) {
  const Outcome outcome = difuse(train_words(data(), run("a"), {"--minutes", "0.03"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_LT(outcome.seconds, 10);
  EXPECT_EQ(difuse({"inspect", run("a").string()}).exit_code, 0);
}

TEST_F(Train, MinutesAreNotSpentOnSamples) {
  // The time is up after the first step, when a grid is due.
  train("a", {"--minutes", "0.00001", "--sample-every", "1"});
  EXPECT_CONTAINS(last_.out, "finished at step 1;");
  EXPECT_FALSE(fs::exists(run("a") / "samples"));
}

TEST_F(Train, SignalsFinishTheStepAndSave) {
  const std::string whole = train("whole", {"--steps", "200"});
  for (const auto& [signal, exit_code] : {std::pair{SIGINT, 130}, std::pair{SIGTERM, 143}}) {
    const fs::path out = run(signal == SIGINT ? "int" : "term");
    Process process(train_words(data(), out, {"--steps", "200", "--log-every", "1"}));
    ASSERT_TRUE(process.wait_for_output("step 3/", 60));
    process.send(signal);
    const Outcome outcome = process.wait();
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.out << outcome.err;
    EXPECT_EQ(outcome.last_line(), checkpoint(out).string());
    // Nothing but the checkpoint and the metrics, and the run goes on to the same end.
    EXPECT_EQ(std::distance(fs::directory_iterator(out), {}), 2);
    EXPECT_TRUE(train(out.filename().c_str(), {"--steps", "200", "--resume"}) == whole);
  }
}

TEST_F(Train, ASecondSignalKillsAtOnce) {
  write_idx(data(), 300, 28, 28);
  Process process({"train", "--data", data().string(), "--out", run("a").string(), "--model", "fashion-demo", "--batch",
                   "300"});  // Long steps.
  ASSERT_TRUE(process.wait_for_output("step 1 ", 120));
  process.send(SIGINT);
  // Two pending signals of a kind would be one.
  ASSERT_TRUE(process.wait_for_error("again stops at once", 60));
  process.send(SIGINT);
  const Outcome outcome = process.wait();
  EXPECT_EQ(outcome.killed_by, SIGINT) << outcome.exit_code;
  EXPECT_CONTAINS(outcome.err, "again stops at once");
  EXPECT_FALSE(fs::exists(checkpoint(run("a"))));
}

/// Kills a run that saves every few steps at random moments; whatever the moment, what it left goes on, to the same
/// end.
class Killed : public Train {
 protected:
  void killed(int times, unsigned seed) {
    const Words more = {"--steps", "90", "--save-every", "3", "--keep-last", "2"};
    const std::string whole = train("whole", more);
    const double seconds = last_.seconds;
    Words again = more;
    again.push_back("--resume");
    std::mt19937 random(seed);
    const fs::path file = checkpoint(run("a"));
    int in_training = 0;
    for (int kill = 0; kill < times; ++kill) {
      if (fs::exists(file) && models::Checkpoint(file).step() == 90) fs::remove_all(run("a"));
      Process process(train_words(data(), run("a"), fs::exists(file) ? again : more));
      // From before the first step to a third of the run.
      std::this_thread::sleep_for(
          std::chrono::duration<double>(seconds / 3 * std::generate_canonical<double, 32>(random)));
      process.send(SIGKILL);
      const Outcome outcome = process.wait();
      EXPECT_TRUE(outcome.killed_by == SIGKILL || outcome.exit_code == 0) << outcome.err;
      in_training += contains(outcome.out, "step 1") || contains(outcome.out, "resumed: ") ? 1 : 0;
      if (!fs::exists(file)) continue;
      EXPECT_EQ(models::Checkpoint(file).step() % 3, 0) << "kill " << kill << ", seed " << seed;
    }
    EXPECT_GT(in_training, times / 4) << "of " << times << " kills";
    EXPECT_TRUE(train("a", fs::exists(file) ? again : more) == whole) << "seed " << seed;
    for (const auto& entry : fs::recursive_directory_iterator(run("a"))) {
      EXPECT_FALSE(contains(entry.path().string(), ".tmp")) << entry.path();
    }
  }
};

TEST_F(Killed, GoesOnAfterTenMoments) { killed(10, 1); }

class SlowKilled : public Killed {};

TEST_F(SlowKilled, GoesOnAfterAHundredMoments) { killed(100, 2); }

TEST_F(Train, StopsWhenTheGradientStaysNotFinite) {
  const Outcome outcome =
      difuse(train_words(data(), run("a"), {"--steps", "100", "--lr", "1e30", "--save-every", "1"}));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_CONTAINS(outcome.out, "the gradient is not finite, the step is skipped (1 so far): out.");
  EXPECT_CONTAINS(outcome.err, "not finite in 10 steps in a row");
  EXPECT_CONTAINS(outcome.err, "--lr");
  EXPECT_CONTAINS(outcome.err, checkpoint(run("a")).string());
  EXPECT_EQ(difuse({"inspect", run("a").string()}).exit_code, 0);
}

TEST_F(Train, AFlagThatContradictsTheCheckpoint) {
  train("a", {"--steps", "1"});
  const std::string before = read_file(checkpoint(run("a")));
  for (const Words& flags : {Words{"--batch", "4"}, Words{"--seed", "1"}, Words{"--flip"},
                             Words{"--schedule", "cosine"}, Words{"--model", "mnist-small"}}) {
    Words more = {"--steps", "2", "--resume"};
    more.insert(more.end(), flags.begin(), flags.end());
    expect_refused(difuse(train_words(data(), run("a"), more)), 2, {flags[0], "contradicts", "checkpoint.safetensors"});
  }
  EXPECT_TRUE(read_file(checkpoint(run("a"))) == before);
}

TEST_F(Train, OtherDataThanTheCheckpoints) {
  train("a", {"--steps", "1"});
  write_idx(data(), 41);
  expect_refused(difuse(train_words(data(), run("a"), {"--steps", "2", "--resume"})), 2, {"--data", "41", "40"});
}

TEST_F(Train, OtherPixelsThanTheCheckpoints) {
  train("a", {"--steps", "1"});
  std::string bytes = read_file(data());
  bytes.back() ^= 1;
  write_file(data(), bytes);
  expect_refused(difuse(train_words(data(), run("a"), {"--steps", "2", "--resume"})), 2, {"--data", "other images"});
}

TEST_F(Train, AResumedRunMayChangeItsRate) {
  train("a", {"--steps", "3", "--lr", "1e-3"});
  train("a", {"--steps", "5", "--resume", "--lr", "1e-4", "--clip-norm", "0.5", "--warmup", "2"});
  EXPECT_CONTAINS(last_.out, "lr: 0.0001 instead of 0.001 from step 3\n");
  EXPECT_CONTAINS(last_.out, "clip-norm: 0.5 instead of");
  // The new values are the run's from then on.
  train("a", {"--steps", "6", "--resume"});
  EXPECT_FALSE(contains(last_.out, "instead of")) << last_.out;
}

TEST_F(Train, NothingIsSavedInsideAStreakOfSkippedSteps) {
  const Outcome outcome = difuse(train_words(data(), run("a"), {"--steps", "3", "--lr", "1e30", "--save-every", "1"}));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_CONTAINS(outcome.err, "2 steps skipped in a row");
  EXPECT_EQ(models::Checkpoint(checkpoint(run("a"))).step(), 1);
}

TEST_F(Train, ParametersThatAreNotFiniteAreNotSaved) {
  const Outcome outcome = difuse(train_words(data(), run("a"), {"--steps", "3", "--lr", "3e38", "--save-every", "1"}));
  expect_refused(outcome, 1, {"the parameter", "is not finite", "--lr"});
  EXPECT_FALSE(fs::exists(checkpoint(run("a"))));
}

TEST_F(Train, ARateThatF32CannotHold) {
  for (const char* rate : {"1e-60", "1e300"}) {
    expect_refused(difuse(train_words(data(), run("a"), {"--steps", "1", "--lr", rate})), 2, {"--lr", "f32"});
  }
}

TEST_F(Train, TwoRunsDoNotShareAFolder) {
  Process first(train_words(data(), run("a"), {"--log-every", "1"}));
  ASSERT_TRUE(first.wait_for_output("step 1 ", 60));
  expect_refused(difuse(train_words(data(), run("a"), {"--steps", "1"})), 2, {run("a").string(), "another run"});
  first.send(SIGHUP);
  EXPECT_EQ(first.wait().exit_code, 129);
  EXPECT_FALSE(fs::exists(run("a") / ".lock"));
}

TEST_F(Train, SaysThatNoStepIsLeft) {
  const std::string bytes = train("a", {"--steps", "3"});
  for (const char* steps : {"2", "3"}) {
    EXPECT_TRUE(train("a", {"--steps", steps, "--resume"}) == bytes);
    EXPECT_CONTAINS(last_.out,
                    fmt::format("\nthe run already has 3 steps: there is nothing to train up to {}\n", steps));
  }
  train("a", {"--steps", "4", "--resume"});
  EXPECT_FALSE(contains(last_.out, "already has")) << last_.out;
}

TEST_F(Train, GoesOnFromALinkedCheckpoint) {
  const std::string whole = train("whole", {"--steps", "4"});
  train("a", {"--steps", "2"});
  fs::rename(checkpoint(run("a")), folder_ / "elsewhere");
  fs::create_symlink(folder_ / "elsewhere", checkpoint(run("a")));
  train("a", {"--steps", "3", "--resume"});
  // A link from outside into the folder is the same run, too.
  fs::remove(checkpoint(run("a")));
  fs::rename(folder_ / "elsewhere", checkpoint(run("a")));
  fs::create_symlink(checkpoint(run("a")), folder_ / "link");
  EXPECT_TRUE(train("a", {"--steps", "4", "--resume=" + (folder_ / "link").string()}) == whole);
}

TEST_F(Train, ANewRunKeepsWhatIsLeftOfTheOneBefore) {
  for (const char* seed : {"1", "2", "3"}) {
    train("a", {"--steps", "2", "--sample-every", "2", "--seed", seed});
    fs::remove(checkpoint(run("a")));
  }
  EXPECT_CONTAINS(last_.out, (run("a") / "metrics.jsonl.2").string());
  std::set<std::string> metrics, grids;
  for (const char* number : {"", ".1", ".2"}) {
    metrics.insert(read_file(run("a") / fmt::format("metrics.jsonl{}", number)));
    grids.insert(read_file(run("a") / fmt::format("samples{}", number) / "step_000002.png"));
  }
  EXPECT_EQ(metrics.size(), 3u);
  EXPECT_EQ(grids.size(), 3u);
}

TEST_F(Train, AFailedGridSavesFirst) {
  fs::create_directory(run("a"));
  write_file(run("a") / "samples", "in the way");
  const Outcome outcome = difuse(train_words(data(), run("a"), {"--steps", "9", "--sample-every", "2"}));
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_CONTAINS(outcome.err, "samples");
  EXPECT_EQ(models::Checkpoint(checkpoint(run("a"))).step(), 2);
}

TEST_F(Train, AFlagMayBeSwitchedOff) {
  EXPECT_TRUE(train("a", {"--steps", "2", "--flip=false"}) == train("b", {"--steps", "2"}));
  EXPECT_EQ(difuse(train_words(data(), run("c"), {"--flip=perhaps"})).exit_code, 2);
}

TEST_F(Train, DebugPrintsThePasses) {
  const Outcome outcome = difuse(train_words(data(), run("a"), {"--steps", "1"}), {"DIFUSE_DEBUG=1"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_CONTAINS(outcome.err, "pass 01");
}

/// The shell's exit code of `difuse` with these words and what `more` says.
int through_shell(const std::string& before, const Words& words, const std::string& after) {
  std::string line = before + " '" + DIFUSE_PROGRAM + "'";
  for (const std::string& word : words) line += " '" + word + "'";
  const int status = std::system(fmt::format("bash -c \"{} {}\"", line, after).c_str());
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(Train, TheConsoleMayGoAway) {
  const Words words = train_words(data(), run("a"), {"--steps", "9", "--log-every", "1"});
  EXPECT_EQ(through_shell("", words, "<&- >&- 2>&-"), 0);
  EXPECT_EQ(models::Checkpoint(checkpoint(run("a"))).step(), 9);
  EXPECT_EQ(through_shell("", train_words(data(), run("b"), {"--steps", "2"}), ">/dev/full"), 0);
  EXPECT_EQ(through_shell("", {"inspect", "tiny"}, ">/dev/full 2>&-"), 1);
  EXPECT_EQ(through_shell("ulimit -f 100;", train_words(data(), run("c"), {"--steps", "2"}), ">&- 2>&-"), 1);
}

TEST_F(Train, InspectDoesNotWaitForAPipe) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  expect_refused(difuse({"inspect", (folder_ / "pipe").string()}), 2, {"pipe"});
}

TEST_F(Train, ASecondRunDoesNotOverwriteTheFirst) {
  train("a", {"--steps", "1"});
  const std::string before = read_file(checkpoint(run("a")));
  expect_refused(difuse(train_words(data(), run("a"), {"--steps", "2"})), 2, {"--out", "--resume"});
  train("b", {"--steps", "1", "--seed", "9"});
  expect_refused(
      difuse({"train", "--resume", run("b").string(), "--data", data().string(), "--out", run("a").string()}), 2,
      {"--out", "another run"});
  EXPECT_TRUE(read_file(checkpoint(run("a"))) == before);
}

}  // namespace
}  // namespace difuse::test
