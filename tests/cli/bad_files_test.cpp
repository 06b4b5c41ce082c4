// Data, checkpoints and folders that cannot be used: each is named, and nothing half-written stays.
#include <gtest/gtest.h>
#include <sys/mount.h>

#include "models/checkpoint.h"
#include "tests/cli/failure.h"
#include "tests/cli/process.h"
#include "tests/cli/tiny_data.h"
#include "tests/support/file_size_limit.h"

namespace difuse::test {
namespace {

using namespace std::string_literals;

namespace fs = std::filesystem;

class BadData : public ::testing::Test {
 protected:
  /// Training on `data` is refused, and the folder it would have made is gone again.
  void refused(const fs::path& data, int exit_code, Words parts) {
    parts.push_back(data.string());
    expect_refused(difuse(train_words(data, folder_ / "runs" / "a", {"--steps", "2"})), exit_code, parts);
    EXPECT_FALSE(fs::exists(folder_ / "runs"));
  }

  TempFolder folder_;
};

TEST_F(BadData, Missing) { refused(folder_ / "nothing", 2, {"--data '", "does not exist"}); }

TEST_F(BadData, EmptyFolder) {
  fs::create_directory(folder_ / "empty");
  refused(folder_ / "empty", 2, {"is empty"});
}

TEST_F(BadData, NoImages) {
  write_file(folder_ / "notes.txt", "not images at all, only words and words");
  refused(folder_ / "notes.txt", 1, {"holds no image"});
}

TEST_F(BadData, Truncated) {
  write_idx(folder_ / "cut-idx3-ubyte", 40);
  fs::resize_file(folder_ / "cut-idx3-ubyte", 1000);
  refused(folder_ / "cut-idx3-ubyte", 1, {"truncated"});
}

TEST_F(BadData, FewerImagesThanABatch) {
  write_idx(folder_ / "few-idx3-ubyte", 3);
  refused(folder_ / "few-idx3-ubyte", 2, {"3 images", "batch of 8", "--batch 3"});
}

TEST_F(BadData, AnotherSizeThanTheModels) {
  write_idx(folder_ / "large-idx3-ubyte", 10, 28, 28);
  refused(folder_ / "large-idx3-ubyte", 2, {"8x8x1", "28x28x1", "--image-size 28", "--model mnist-small"});
  write_idx(folder_ / "wide-idx3-ubyte", 10, 8, 12);
  refused(folder_ / "wide-idx3-ubyte", 2, {"8x8x1", "8x12x1", "--image-size 8 to", "--image-size 8x12 for"});
  write_idx(folder_ / "odd-idx3-ubyte", 10, 8, 9);  // Which the levels do not halve.
  refused(folder_ / "odd-idx3-ubyte", 2,
          {"8x8x1", "8x9x1", "--image-size 8 to bring the images to the model's size\n"});
}

struct BadCheckpoint {
  const char* name;
  std::string (*contents)(const std::string& good);
  const char* message;
};

class BadCheckpoints : public ::testing::TestWithParam<BadCheckpoint> {};

TEST_P(BadCheckpoints, IsNamedForWhatItIs) {
  const TempFolder folder;
  const fs::path data = folder / "blobs-idx3-ubyte", file = folder / "bad.safetensors";
  write_idx(data, 40);
  ASSERT_EQ(difuse(train_words(data, folder / "good", {"--steps", "1"})).exit_code, 0);
  write_file(file, GetParam().contents(read_file(folder / "good" / "checkpoint.safetensors")));
  const std::string out = (folder / "a.png").string();
  expect_refused(difuse({"sample", "--checkpoint", file.string(), "--out", out}), 1,
                 {file.string(), GetParam().message});
  expect_refused(difuse({"inspect", file.string()}), 1, {file.string(), GetParam().message});
  expect_refused(difuse(train_words(data, folder / "next", {"--resume", file.string()})), 1,
                 {file.string(), GetParam().message});
  EXPECT_EQ(folder.entries(), 3u) << "data, the good run, the bad file";
}

/// The file with `from` in its header replaced by a text of the same length.
std::string altered(std::string file, const std::string& from, const std::string& to) {
  const size_t at = file.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  EXPECT_EQ(from.size(), to.size());
  return file.replace(at, to.size(), to);
}

INSTANTIATE_TEST_SUITE_P(
    Files, BadCheckpoints,
    ::testing::Values(
        BadCheckpoint{"Empty", [](const std::string&) { return std::string(); }, "is empty"},
        BadCheckpoint{"Truncated", [](const std::string& good) { return good.substr(0, good.size() / 2); },
                      "truncated"},
        BadCheckpoint{"FlippedBit",
                      [](const std::string& good) {
                        std::string changed = good;
                        changed[changed.size() / 2] ^= 4;
                        return changed;
                      },
                      "is damaged"},
        BadCheckpoint{"LfsPointer",
                      [](const std::string&) {
                        return std::string("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n");
                      },
                      "LFS"},
        BadCheckpoint{"WebPage", [](const std::string&) { return std::string("<!DOCTYPE html><html></html>"); },
                      "HTML"},
        BadCheckpoint{"Pickle", [](const std::string&) { return "\x80\x02}q\x00(X\x05\x00\x00\x00model"s; }, "pickle"},
        BadCheckpoint{"ForeignSafetensors",
                      [](const std::string&) {
                        const std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
                        return std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header + "x";
                      },
                      "not a checkpoint of difuse"},
        BadCheckpoint{
            "AnotherFormat",
            [](const std::string& good) { return altered(good, R"("difuse.format":"1")", R"("difuse.format":"9")"); },
            "format 9"},
        BadCheckpoint{"ImpossibleModel",
                      [](const std::string& good) { return altered(good, R"(\"groups\":8)", R"(\"groups\":7)"); },
                      "impossible"}),
    [](const auto& row) { return row.param.name; });

TEST(BadCheckpoint, ATensorOfAnotherShape) {
  const TempFolder folder;
  write_idx(folder / "blobs-idx3-ubyte", 40);
  ASSERT_EQ(difuse(train_words(folder / "blobs-idx3-ubyte", folder / "run", {"--steps", "1"})).exit_code, 0);
  const fs::path file = folder / "run" / "checkpoint.safetensors";
  const std::string good = read_file(file);
  const std::string out = (folder / "a.png").string();

  write_file(file, altered(good, R"("ema/out.2.weight")", R"("ema/out.2.wEight")"));
  expect_refused(difuse({"sample", "--checkpoint", file.string(), "--out", out}), 1, {"ema/out.2.wEight"});

  write_file(file, altered(good, R"("adam_m/out.2.weight")", R"("adam_x/out.2.weight")"));
  expect_refused(difuse(train_words(folder / "blobs-idx3-ubyte", folder / "run", {"--steps", "2", "--resume"})), 1,
                 {"has no tensor 'adam_m/out.2.weight'"});
  EXPECT_FALSE(fs::exists(out));
}

TEST(BadCheckpoint, MissingOrNoneInTheFolder) {
  const TempFolder folder;
  const std::string out = (folder / "a.png").string();
  expect_refused(difuse({"sample", "--checkpoint", (folder / "no").string(), "--out", out}), 2,
                 {"--checkpoint", (folder / "no").string(), "does not exist"});
  expect_refused(difuse({"sample", "--checkpoint", folder.path().string(), "--out", out}), 2,
                 {"--checkpoint", folder.path().string(), "holds no checkpoint"});
  write_idx(folder / "blobs-idx3-ubyte", 40);
  expect_refused(difuse(train_words(folder / "blobs-idx3-ubyte", folder / "run", {"--resume"})), 2, {"does not exist"});
  EXPECT_EQ(folder.entries(), 1u);
}

class BadOutput : public ::testing::Test {
 protected:
  BadOutput() { write_idx(data(), 40); }
  fs::path data() const { return folder_ / "blobs-idx3-ubyte"; }
  TempFolder folder_;
};

TEST_F(BadOutput, BelowAFile) {
  write_file(folder_ / "file", "x");
  expect_refused(difuse(train_words(data(), folder_ / "file" / "run", {"--steps", "2"})), 2,
                 {"--out", (folder_ / "file").string(), "a file, not a folder"});
  expect_refused(difuse(train_words(data(), folder_ / "file", {"--steps", "2"})), 2, {"--out", "a file, not a folder"});
  EXPECT_EQ(folder_.entries(), 2u);
}

TEST_F(BadOutput, AmongTheData) {
  const fs::path images = folder_ / "images";
  write_images(images, 10);
  fs::create_directory_symlink(images, folder_ / "link");
  const size_t before = folder_.entries();
  for (const fs::path& out : {images, images / "runs" / "a", folder_ / "link" / "a", images / "no" / ".." / "a"}) {
    expect_refused(difuse(train_words(images, out, {"--steps", "2"})), 2,
                   {"--out '" + out.string(), "--data '" + images.string(), "outside"});
  }
  EXPECT_EQ(folder_.entries(), before);
  EXPECT_EQ(difuse(train_words(images, folder_ / "images2", {"--steps", "2", "--data-cache", (folder_ / "c").string()}))
                .exit_code,
            0);
}

TEST_F(BadOutput, WhereNothingCanBeWritten) {
  expect_refused(difuse(train_words(data(), "/proc/difuse/run", {"--steps", "2"})), 2, {"--out", "/proc/difuse"});
  expect_refused(difuse(train_words(data(), "/proc", {"--steps", "2"})), 2, {"--out", "/proc"});
}

TEST_F(BadOutput, FilesMayNotGrow) {
  const FileSizeLimit limit(1 << 20);
  expect_refused(difuse(train_words(data(), folder_ / "runs" / "a", {"--steps", "2"})), 1,
                 {"checkpoint.safetensors", "larger"});
  EXPECT_EQ(folder_.entries(), 1u);
}

TEST_F(BadOutput, FullDisk) {
  fs::create_directory(folder_ / "disk");
  const std::string disk = (folder_ / "disk").string();
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=6m") != 0) GTEST_SKIP() << "mounting a small disk needs root";
  const fs::path run = folder_ / "disk" / "run";
  EXPECT_EQ(difuse(train_words(data(), run, {"--steps", "1"})).exit_code, 0);
  const std::string before = read_file(run / "checkpoint.safetensors");
  expect_refused(difuse(train_words(data(), run, {"--steps", "2", "--resume"})), 1, {"--out", "MB", "free"});
  expect_refused(difuse(train_words(data(), folder_ / "disk" / "next", {"--steps", "2"})), 1, {"--out", "MB", "free"});
  EXPECT_TRUE(read_file(run / "checkpoint.safetensors") == before);
  EXPECT_EQ(std::distance(fs::directory_iterator(disk), {}), 1);
  ::umount2(disk.c_str(), MNT_DETACH);
}

TEST_F(BadOutput, ADiskThatFillsUpDuringTheRun) {
  fs::create_directory(folder_ / "disk");
  const std::string disk = (folder_ / "disk").string();
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=12m") != 0) GTEST_SKIP() << "mounting a small disk needs root";
  const fs::path run = folder_ / "disk" / "run", file = run / "checkpoint.safetensors";
  Process process(train_words(data(), run, {"--steps", "100000", "--save-every", "20", "--log-every", "1"}));
  ASSERT_TRUE(process.wait_for_output("step 25/", 60));
  write_file(folder_ / "disk" / "filler", std::string(7 << 20, 'x'));
  const Outcome outcome = process.wait();
  expect_refused(outcome, 1, {file.string(), "disk", "unchanged"});
  EXPECT_EQ(models::Checkpoint(file).step() % 20, 0);
  fs::remove(folder_ / "disk" / "filler");
  const std::string steps = std::to_string(models::Checkpoint(file).step() + 1);
  EXPECT_EQ(difuse(train_words(data(), run, {"--steps", steps, "--resume"})).exit_code, 0);
  ::umount2(disk.c_str(), MNT_DETACH);
}

}  // namespace
}  // namespace difuse::test
