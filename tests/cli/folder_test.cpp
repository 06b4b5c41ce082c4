// Folders of real image files, from the scan to the samples.
#include <gtest/gtest.h>

#include <thread>

#include "runtime/png.h"
#include "tests/cli/failure.h"
#include "tests/cli/process.h"
#include "tests/cli/tiny_data.h"
#include "tests/support/images/encoders.h"

namespace difuse::test {
namespace {

namespace fs = std::filesystem;

class Folder : public ::testing::Test {
 protected:
  fs::path images() const { return folder_ / "images"; }
  fs::path run(const char* name = "a") const { return folder_ / "runs" / name; }
  static fs::path checkpoint(const fs::path& run) { return run / "checkpoint.safetensors"; }

  /// Runs difuse with a cache of its own.
  Outcome call(const Words& words) const {
    return difuse(words, {"XDG_CACHE_HOME=" + (folder_ / "cache").string(), "OMP_WAIT_POLICY=passive"}, folder_.path());
  }
  Outcome train(const Words& more, const char* name = "a") const {
    return call(train_words(images(), run(name), more));
  }

  void trains(const Words& more, const char* name = "a") {
    last_ = train(more, name);
    ASSERT_EQ(last_.exit_code, 0) << last_.out << last_.err;
    EXPECT_TRUE(fs::exists(checkpoint(run(name))));
  }

  runtime::Image draw(const Words& more) {
    Words words = {"sample", "--checkpoint", run().string(), "--out", (folder_ / "a.png").string(), "--steps", "4"};
    words.insert(words.end(), more.begin(), more.end());
    last_ = call(words);
    EXPECT_EQ(last_.exit_code, 0) << last_.out << last_.err;
    return runtime::read_png(folder_ / "a.png");
  }

  TempFolder folder_;
  Outcome last_;
};

/// The README's words, with the folder's name put in.
void trains_and_samples(const TempFolder& folder, const std::string& model, const std::string& size,
                        const std::string& steps) {
  const Words environment = {"XDG_CACHE_HOME=" + (folder / "cache").string(), "OMP_WAIT_POLICY=passive"};
  const std::string data = (folder / "some" / "folder").string();
  const Outcome trained = difuse({"train", "--data", data, "--model", model, "--channels", "1", "--image-size", size,
                                  "--steps", steps, "--out", "runs/a"},
                                 environment, folder.path());
  ASSERT_EQ(trained.exit_code, 0) << trained.out << trained.err;
  EXPECT_CONTAINS(trained.out, "step " + steps + "/" + steps);
  const Outcome sampled =
      difuse({"sample", "--checkpoint", "runs/a", "--n", "16", "--out", "a.png"}, environment, folder.path());
  ASSERT_EQ(sampled.exit_code, 0) << sampled.out << sampled.err;
  EXPECT_EQ(sampled.last_line(), "a.png");
  const runtime::Image grid = runtime::read_png(folder / "a.png");
  EXPECT_EQ(grid.channels, 1);
  EXPECT_EQ(grid.width, 4 * (std::stoi(size) + 2) + 2);
}

TEST(TwoCommands, TrainOnAFolderAndSample) {
  const TempFolder folder;
  write_images(folder / "some" / "folder" / "deep" / "deeper", 12);
  write_images(folder / "some" / "folder", 9, 8, 8);
  trains_and_samples(folder, "tiny", "8", "20");
}

TEST(SlowTwoCommands, TrainOnAFolderAndSample) {
  const TempFolder folder;
  write_images(folder / "some" / "folder", 150, 28, 28);
  trains_and_samples(folder, "mnist-small", "28", "200");
}

TEST_F(Folder, SaysWhatItFoundBeforeTheFirstStep) {
  write_images(images() / "one", 12, 10, 14);
  write_images(images() / "two", 6);
  write_file(images() / "notes.txt", "not an image");
  trains({"--steps", "2"});
  const std::string before = last_.out.substr(0, last_.out.find("\nstep 1"));
  for (const char* part :
       {"18 image files in 3 folders", "a text file", "PNG grey ", "JPEG grey ", "as it is", "8x8 to 10x14",
        "12 of 18 brought to 8x8", "cut around the centre", "decoded into", "data: 18 images of 8x8x1"}) {
    EXPECT_CONTAINS(before, part);
  }
  EXPECT_EQ(std::distance(fs::recursive_directory_iterator(folder_ / "cache" / "difuse"), {}), 2) << "folder and file";

  trains({"--steps", "2", "--crop", "none"}, "b");
  EXPECT_CONTAINS(last_.out, "squeezed");
  const std::string first = read_file(checkpoint(run()));
  EXPECT_FALSE(first == read_file(checkpoint(run("b"))));
  trains({"--steps", "2", "--data-cache", (folder_ / "other").string()}, "c");
  EXPECT_TRUE(first == read_file(checkpoint(run("c"))));
  EXPECT_TRUE(fs::exists(folder_ / "other"));
  trains({"--steps", "2"}, "d");
  EXPECT_CONTAINS(last_.out, "decoded before");
  EXPECT_TRUE(first == read_file(checkpoint(run("d"))));
}

TEST_F(Folder, ResumesWithoutRepeatingHowTheImagesWereMade) {
  write_images(images() / "left", 20, 12, 20);
  write_images(images() / "right", 20, 20, 12);
  const Words flags = {"--crop", "none", "--image-size", "8x12", "--class-from-folder", "--flip"};
  const auto with = [&](Words more) {
    more.insert(more.end(), flags.begin(), flags.end());
    return more;
  };
  trains(with({"--steps", "6"}), "whole");
  trains(with({"--steps", "3"}), "parts");
  last_ = call({"train", "--data", images().string(), "--out", run("parts").string(), "--steps", "6", "--resume",
                "--sample-every", "0"});
  ASSERT_EQ(last_.exit_code, 0) << last_.err;
  EXPECT_TRUE(read_file(checkpoint(run("parts"))) == read_file(checkpoint(run("whole"))));
  for (const Words& other : {Words{"--crop", "center"}, Words{"--image-size", "12"}, Words{"--channels", "3"}}) {
    Words words = train_words(images(), run("parts"), {"--steps", "7", "--resume"});
    words.insert(words.end(), other.begin(), other.end());
    expect_refused(call(words), 2, {other[0], "contradicts", "checkpoint.safetensors"});
  }
}

TEST_F(Folder, GreyStaysOneChannelAndColourBecomesWhatIsAsked) {
  write_images(images(), 20);
  trains({"--steps", "2", "--channels", "1"});
  EXPECT_CONTAINS(last_.out, "of 8x8x1");
  EXPECT_EQ(draw({"--n", "4"}).channels, 1);
  for (const char* channels : {"3", "4"}) {
    fs::remove_all(run());
    trains({"--steps", "2", "--channels", channels});
    EXPECT_CONTAINS(last_.out, std::string("of 8x8x") + channels);
    EXPECT_EQ(draw({"--n", "4"}).channels, std::stoi(channels));
  }
}

TEST_F(Folder, AnyBatchAndShapeTrains) {
  write_images(images(), 20);
  int number = 0;
  for (const Words& more : {Words{"--batch", "1"}, Words{"--batch", "3"}, Words{"--batch", "13"},
                            Words{"--image-size", "30", "--batch", "2"}, Words{"--image-size", "48x80", "--batch", "1"},
                            Words{"--image-size", "6x10", "--batch", "3", "--channels", "3"}}) {
    Words words = more;
    words.insert(words.end(), {"--steps", "2"});
    trains(words, std::to_string(number++).c_str());
  }
}

TEST_F(Folder, ShapesThatDoNotFitAreRefusedWithTheArithmetic) {
  // The data do not exist: nothing of them is looked at before.
  const auto refused = [&](const Words& more, const Words& parts) {
    Words words = {"train", "--data", images().string(), "--out", run().string(), "--steps", "1"};
    words.insert(words.end(), more.begin(), more.end());
    expect_refused(call(words), 2, parts);
    EXPECT_FALSE(fs::exists(folder_ / "runs"));
  };
  refused({"--model", "mnist-small", "--image-size", "30"}, {"height 30 is not divisible by 4", "need 32", "2 levels"});
  refused({"--model", "mnist-small", "--image-size", "28x81"}, {"width 81 is not divisible by 4", "need 84"});
  refused({"--model", "tiny", "--batch", "8", "--microbatch", "3"}, {"8 = 2 x 3 + 2", "--microbatch 2"});
  write_file(folder_ / "a.toml", "preset = \"mnist-small\"\n[model]\nchannel_mult = [1, 1, 1, 1]\n");
  refused({"--config", "a.toml"}, {"height 28 is not divisible by 8", "4 levels need 32", "3 levels"});
  write_file(folder_ / "a.toml", "preset = \"tiny\"\n[model]\nmodel_channels = 20\n");
  refused({"--config", "a.toml"}, {"20 x 1 = 20 channels", "8 groups", "use 5 groups"});
  refused({"--model", "tiny", "--image-size", "0"}, {"--image-size 0 "});
  refused({"--model", "tiny", "--image-size", "8x"}, {"--image-size 8x "});
  refused({"--model", "tiny", "--channels", "2"}, {"--channels '2'", "1, 3, 4"});
}

TEST_F(Folder, OddWidthsTrainWithGroupsThatDivideThem) {
  write_images(images(), 10);
  for (const auto& [channels, groups] : {std::pair{20, 5}, std::pair{36, 9}, std::pair{100, 25}}) {
    const std::string name = std::to_string(channels);
    write_file(folder_ / "a.toml", "preset = \"tiny\"\n[model]\nmodel_channels = " + name +
                                       "\ngroups = " + std::to_string(groups) + "\n[training]\nbatch = 3\n");
    last_ = call({"train", "--config", "a.toml", "--data", images().string(), "--out", run(name.c_str()).string(),
                  "--steps", "2", "--sample-every", "0"});
    EXPECT_EQ(last_.exit_code, 0) << last_.out << last_.err;
  }
}

TEST_F(Folder, MissingEmptyAndUselessAreThreeMessages) {
  expect_refused(train({"--steps", "1"}), 2, {images().string(), "does not exist"});
  fs::create_directories(images() / "inner");
  expect_refused(train({"--steps", "1"}), 2, {images().string(), "is empty"});
  write_file(images() / "inner" / "notes.txt", "words");
  expect_refused(train({"--steps", "1"}), 2, {images().string(), "no usable image", "a text file"});
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
}

TEST_F(Folder, FewerImagesThanABatch) {
  write_images(images(), 7);
  expect_refused(train({"--steps", "1"}), 2, {"7 images", "batch of 8", "--batch 7"});
  expect_refused(train({"--steps", "1", "--microbatch", "2"}), 2, {"7 images", "batch of 8"});
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
}

TEST_F(Folder, BadImagesStopTheRunOrAreSkipped) {
  write_images(images(), 10);
  const std::string good = read_file(images() / "001.png");
  write_file(images() / "cut.png", good.substr(0, good.size() / 2));
  write_file(images() / "page.jpg", "<!DOCTYPE html><html></html>");
  last_ = train({"--steps", "1"});
  EXPECT_EQ(last_.exit_code, 1);
  for (const char* part : {"difuse: --data: 2 of 12 image files", "cut.png", "page.jpg", "--on-bad-image skip"}) {
    EXPECT_CONTAINS(last_.err, part);
  }
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
  trains({"--steps", "1", "--on-bad-image", "skip"});
  EXPECT_CONTAINS(last_.err, "cut.png");
  EXPECT_CONTAINS(last_.out, "10 images of 8x8x1");
  EXPECT_CONTAINS(last_.out, "2 bad files skipped");
  trains({"--steps", "2", "--resume"});  // The policy is the run's.
}

class Classes : public Folder {
 protected:
  Classes() {
    write_images(images() / "cat", 12);
    write_images(images() / "dog", 9);
  }
};

TEST_F(Classes, TrainAndSampleByNameOrNumber) {
  trains({"--steps", "12", "--class-from-folder", "--sample-every", "12"});
  const std::string before = last_.out.substr(0, last_.out.find("\nstep 1"));
  for (const char* part : {"2 classes from folder names", "12 images  cat", "9 images  dog", "batch 8, 2 classes"}) {
    EXPECT_CONTAINS(before, part);
  }
  EXPECT_TRUE(fs::exists(run() / "samples" / "step_000012.png"));

  const auto both = draw({"--n", "4"}).pixels;
  EXPECT_CONTAINS(last_.out, "in turn: cat, dog");
  EXPECT_EQ(draw({"--n", "4", "--class", "cat,dog"}).pixels, both);
  EXPECT_EQ(draw({"--n", "4", "--class", "0,1", "--batch", "3"}).pixels, both);
  const auto cats = draw({"--n", "4", "--class", "cat"}).pixels;
  EXPECT_EQ(draw({"--n", "4", "--class", "0"}).pixels, cats);
  EXPECT_NE(draw({"--n", "4", "--class", "dog"}).pixels, cats);
  EXPECT_NE(both, cats);

  const Words words = {"sample", "--checkpoint", run().string(), "--out", (folder_ / "b.png").string(), "--class"};
  const auto with = [&](const char* text) {
    Words all = words;
    all.emplace_back(text);
    return all;
  };
  expect_refused(call(with("dgo")), 2, {"--class 'dgo'", "0 to 1", "did you mean 'dog'?"});
  expect_refused(call(with("cat,2")), 2, {"--class '2'", "0 to 1"});
  expect_refused(call(with("cat,,dog")), 2, {"--class ''"});
  const Outcome inspected = call({"inspect", run().string()});
  EXPECT_CONTAINS(inspected.out, "0  cat");
  EXPECT_CONTAINS(inspected.out, "num_classes");

  // Other folders are other classes, even with as many images.
  fs::rename(images() / "cat", images() / "cats");
  expect_refused(train({"--steps", "13", "--resume"}), 2, {"cats, dog", "cat, dog", "--resume"});
}

TEST_F(Classes, AreRefusedWhereTheyCannotBe) {
  trains({"--steps", "1"});
  expect_refused(
      call({"sample", "--checkpoint", run().string(), "--out", (folder_ / "b.png").string(), "--class", "cat"}), 2,
      {"--class cat", "no classes"});
  expect_refused(train({"--steps", "1", "--classes", "2"}, "b"), 2, {"no labels", "--class-from-folder"});
  expect_refused(train({"--steps", "1", "--classes", "1", "--class-from-folder"}, "b"), 2,
                 {"label 1", "1 classes", "--classes 2"});
  expect_refused(train({"--steps", "1", "--classes", "0", "--class-from-folder"}, "b"), 2, {"--classes 0"});
  write_images(images(), 2);
  expect_refused(train({"--steps", "1", "--class-from-folder"}, "b"), 2, {"--class-from-folder", "000.jpg"});
  EXPECT_FALSE(fs::exists(run("b")));
}

TEST_F(Classes, LabelsOfIdxData) {
  const fs::path data = folder_ / "blobs-images-idx3-ubyte";
  write_idx(data, 20);
  std::vector<uint8_t> labels(20);
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<uint8_t>(i % 4);
  write_idx_labels(folder_ / "blobs-labels-idx1-ubyte", labels);
  expect_refused(call(train_words(data, run(), {"--steps", "1", "--classes", "3"})), 2,
                 {data.string(), "image 3 has label 3", "0 to 2", "5 of 20", "--classes 4"});
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
  last_ = call(train_words(data, run(), {"--steps", "2", "--classes", "4"}));
  ASSERT_EQ(last_.exit_code, 0) << last_.err;
  EXPECT_CONTAINS(last_.out, "labels: 0: 5, 1: 5, 2: 5, 3: 5");
  draw({"--class", "3,1"});
  EXPECT_CONTAINS(last_.out, "in turn: 3, 1");
}

TEST_F(Folder, IdxDataChangeOnlyWhenAsked) {
  const fs::path data = folder_ / "large-idx3-ubyte";
  write_idx(data, 20, 16, 16);
  expect_refused(call(train_words(data, run(), {"--steps", "1"})), 2,
                 {"8x8x1", "16x16x1", "--image-size 8 to", "--image-size 16 for"});
  // A size that the model's levels do not divide is no remedy.
  write_idx(folder_ / "odd-idx3-ubyte", 20, 9, 9);
  const Outcome odd = call(train_words(folder_ / "odd-idx3-ubyte", run(), {"--steps", "1"}));
  expect_refused(odd, 2, {"8x8x1", "9x9x1", "--image-size 8 to"});
  EXPECT_EQ(odd.err.find("--image-size 9"), std::string::npos) << odd.err;
  last_ = call(train_words(data, run(), {"--steps", "1", "--image-size", "8"}));
  EXPECT_EQ(last_.exit_code, 0) << last_.err;
  EXPECT_CONTAINS(last_.out, "brought to 8x8x1");
  last_ = call(train_words(data, run("b"), {"--steps", "1", "--image-size", "16", "--channels", "3"}));
  EXPECT_EQ(last_.exit_code, 0) << last_.err;
  EXPECT_CONTAINS(last_.out, "brought to 16x16x3");
  last_ = call(train_words(data, run(), {"--steps", "2", "--resume"}));
  EXPECT_EQ(last_.exit_code, 0) << last_.err;
}

TEST_F(Classes, ADryRunSaysWhatItWouldTakeAndWritesNothing) {
  const size_t before = folder_.entries();
  last_ =
      call(without(train_words(images(), run(), {"--class-from-folder", "--dry-run", "--microbatch", "4"}), "--out"));
  EXPECT_EQ(last_.exit_code, 0) << last_.out << last_.err;
  for (const char* part : {"12 images  cat", "21 images of 8x8x1", "batch 8 (2 x 4), 2 classes", "parameters ",
                           "state ", "arena ", "GFLOP a step", " in all, of this machine's ", "nothing was written"}) {
    EXPECT_CONTAINS(last_.out, part);
  }
  EXPECT_FALSE(contains(last_.out, "\nstep ")) << last_.out;
  EXPECT_EQ(train({"--dry-run", "--steps", "5"}).exit_code, 0);
  EXPECT_EQ(folder_.entries(), before) << "neither run nor cache";
  expect_refused(train({"--dry-run", "--batch", "64"}), 2, {"21 images", "batch of 64"});

  // Of a model far larger than the memory of most machines only the plan is made.
  write_file(folder_ / "large.toml",
             "[model]\nimage_height = 64\nimage_width = 64\nmodel_channels = 2048\nchannel_mult = [1, 2]\n"
             "num_res_blocks = 1\n");
  last_ = call({"train", "--config", "large.toml", "--data", images().string(), "--batch", "16", "--dry-run"});
  EXPECT_EQ(last_.exit_code, 0) << last_.out << last_.err;
  EXPECT_CONTAINS(last_.out, " GB");
  EXPECT_EQ(folder_.entries(), before + 1);
}

TEST_F(Classes, InspectDescribesAFolder) {
  write_images(images(), 3, 5, 9);
  write_file(images() / "bro\x1b[2Jken.png", "no");
  const size_t before = folder_.entries();
  last_ = call({"inspect", images().string()});
  EXPECT_EQ(last_.exit_code, 0) << last_.err;
  for (const char* part :
       {"25 image files in 3 folders", "PNG grey ", "JPEG grey ", "not used", "5x8 to 8x9", "several sizes"}) {
    EXPECT_CONTAINS(last_.out, part);
  }
  EXPECT_CONTAINS(last_.err, "bro\\x1b[2Jken.png") << "nothing that commands the terminal";
  EXPECT_EQ(folder_.entries(), before) << "no cache";
}

TEST_F(Folder, ASignalDuringTheScanLeavesNothing) {
  fs::create_directory(images());
  const std::string large = encode_png({.width = 800, .height = 800}, [](int x, int y, int) { return x * y % 256; });
  for (int i = 0; i < 300; ++i) write_file(images() / (std::to_string(i) + ".png"), large);
  Process process(train_words(images(), run(), {"--threads", "1"}), {"XDG_CACHE_HOME=" + (folder_ / "cache").string()},
                  folder_.path());
  ASSERT_TRUE(process.wait_for_output("300 image files", 30));
  process.send(SIGTERM);
  last_ = process.wait();
  EXPECT_EQ(last_.exit_code, 143) << last_.out << last_.err;
  EXPECT_CONTAINS(last_.out, "before the first step");
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
  size_t files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "cache"))
    files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, 0u);
}

}  // namespace
}  // namespace difuse::test
