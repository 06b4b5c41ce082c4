// Super-resolution with the real binary: a small model is trained to enlarge, and enlarges.
#include <gtest/gtest.h>

#include "runtime/png.h"
#include "tests/cli/failure.h"
#include "tests/cli/process.h"
#include "tests/cli/tiny_data.h"

namespace difuse::test {
namespace {

namespace fs = std::filesystem;

/// Of few timesteps, so that the grids of trainings take few as well.
constexpr const char* kEnlarging =
    "preset = \"tiny\"\n[model]\nconditioning_channels = 1\nlow_res_factor = 2\n[diffusion]\ntimesteps = 24\n";

class LowRes : public ::testing::Test {
 protected:
  LowRes() {
    write_images(folder_ / "data", 16);
    write_images(folder_ / "small", 3, 4, 4);
    write_file(folder_ / "sr.toml", kEnlarging);
    const Outcome outcome = train(run(), {"--steps", "6", "--sample-every", "6"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
  }

  fs::path run() const { return folder_ / "run"; }
  Outcome train(const fs::path& out, const Words& more) const {
    Words words = without(without(train_words(folder_ / "data", out, {}), "--model"), "--sample-every");
    words.insert(words.end(), {"--config", (folder_ / "sr.toml").string()});
    words.insert(words.end(), more.begin(), more.end());
    return difuse(words);
  }
  Outcome call(const char* command, const Words& more) const {
    Words words = {command, "--checkpoint", run().string()};
    words.insert(words.end(), more.begin(), more.end());
    return difuse(words, cache_);
  }
  runtime::Image draw(const Words& more) const {
    Words words = {"--steps", "4", "--out", (folder_ / "a.png").string()};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = call("sample", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    return runtime::read_png(folder_ / "a.png");
  }

  TempFolder folder_;
  const Words cache_ = {"DIFUSE_CACHE=" + (folder_ / "cache").string()};
};

TEST_F(LowRes, TrainsDrawsAndGoesOn) {
  EXPECT_TRUE(fs::exists(run() / "samples" / "step_000006.png"));
  EXPECT_CONTAINS(difuse({"inspect", run().string()}).out, "low_res_factor         2");
  const std::string small = (folder_ / "small").string();
  const runtime::Image three = draw({"--low-res", small});  // As many as there are.
  EXPECT_EQ(three.width, 2 * 10 + 2);
  // Image 1 enlarges the second file, alone and among others.
  const runtime::Image second = draw({"--low-res", small, "--seeds", "1"});
  for (size_t y = 0; y < 8; ++y) {
    for (size_t x = 0; x < 8; ++x) {
      ASSERT_EQ(three.pixels[(2 + y) * 22 + 12 + x], second.pixels[y * 8 + x]);
    }
  }
  EXPECT_NE(draw({"--low-res", (folder_ / "small" / "002.png").string(), "--seeds", "1"}).pixels, second.pixels);
  EXPECT_EQ(draw({"--low-res", small, "--n", "5", "--batch", "2"}).width, 3 * 10 + 2);
  const Outcome resumed = train(run(), {"--resume", "--steps", "7"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
}

TEST_F(LowRes, OtherFormatsKeepTheFactor) {
  const std::string small = (folder_ / "small").string();
  const Words how = {"--low-res", small, "--seeds", "1"};
  const auto drawn = draw(how).pixels;
  const auto converted = [&](const std::string& to, const char* format, const Words& more) {
    const std::string path = (folder_ / to).string();
    const Outcome outcome = difuse({"convert", "--from", run().string(), "--to", path, "--format", format});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    Words words = {"sample", "--checkpoint", path, "--steps", "4", "--out", (folder_ / "b.png").string()};
    words.insert(words.end(), how.begin(), how.end());
    words.insert(words.end(), more.begin(), more.end());
    const Outcome sampled = difuse(words, cache_);
    EXPECT_EQ(sampled.exit_code, 0) << sampled.out << sampled.err;
    return runtime::read_png(folder_ / "b.png").pixels;
  };
  EXPECT_EQ(converted("d", "diffusers", {}), drawn);
  EXPECT_EQ(converted("n.safetensors", "safetensors", {"--config", (folder_ / "sr.toml").string()}), drawn);
}

TEST_F(LowRes, AGridShowsPhotosWithTheirOwnClasses) {
  write_images(folder_ / "kinds" / "a", 16);
  write_images(folder_ / "kinds" / "b", 16);
  Words words = without(without(train_words(folder_ / "kinds", folder_ / "c", {}), "--model"), "--sample-every");
  words.insert(words.end(), {"--config", (folder_ / "sr.toml").string(), "--class-from-folder", "--steps", "2"});
  words.insert(words.end(), {"--microbatch", "4", "--sample-every", "2"});
  const fs::path dump = folder_ / "dump";
  const Outcome trained = difuse(words, {"DIFUSE_DUMP=" + dump.string()});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const auto grid = runtime::read_png(folder_ / "c" / "samples" / "step_000002.png").pixels;
  const auto drawn_as = [&](const std::string& name) {
    const Outcome outcome =
        difuse({"sample", "--checkpoint", (folder_ / "c").string(), "--low-res", (folder_ / "kinds" / "a").string(),
                "--class", name, "--seed", "7", "--out", (folder_ / "a.png").string()},
               cache_);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return runtime::read_png(folder_ / "a.png").pixels;
  };
  EXPECT_EQ(grid, drawn_as("a"));
  EXPECT_NE(grid, drawn_as("a,b"));
  // In batches that the training fits as well.
  std::string graphs;
  for (const auto& entry : fs::recursive_directory_iterator(dump / "sampling_step")) {
    if (entry.is_regular_file()) graphs += read_file(entry.path());
  }
  EXPECT_NE(graphs.find("[4, 8, 8, 1]"), std::string::npos);
  EXPECT_EQ(graphs.find("[16, 8, 8, 1]"), std::string::npos);
}

TEST_F(LowRes, SaysWhatIsDoneWithTheImages) {
  const std::string out = (folder_ / "a.png").string(), small = (folder_ / "small").string();
  write_images(folder_ / "wide", 3, 4, 8);
  const auto said = [&](const Words& more) {
    Words words = {"--steps", "2", "--out", out, "--low-res"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = call("sample", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_CONTAINS(said({(folder_ / "wide").string()}), "brought to 4x4: resized to cover it, then cut");
  EXPECT_CONTAINS(said({(folder_ / "wide" / "001.png").string()}), "of 4x8 before: resized to cover it, then cut");
  EXPECT_CONTAINS(said({(folder_ / "data" / "001.png").string()}), "of 8x8 before: resized\n");
  write_idx(folder_ / "wide-idx3-ubyte", 2, 4, 8);
  EXPECT_CONTAINS(said({(folder_ / "wide-idx3-ubyte").string()}), "brought to 4x4x1 (resized to cover it, then cut");
  EXPECT_EQ(said({small}).find("in turn"), std::string::npos);
  EXPECT_CONTAINS(said({small, "--n", "5"}), "low-res: 3 images, taken in turn: image I enlarges number I modulo 3");
}

TEST_F(LowRes, IsSeenAndMeasured) {
  // The forward process needs nothing to enlarge.
  const Outcome forward = call("visualize", {"--out", (folder_ / "f").string(), "--only", "forward", "--data",
                                             (folder_ / "data").string(), "--seeds", "0-2"});
  EXPECT_EQ(forward.exit_code, 0) << forward.err;
  const Outcome pictures = call("visualize", {"--out", (folder_ / "p").string(), "--only", "reverse", "--low-res",
                                              (folder_ / "small").string(), "--seeds", "0-2", "--steps", "3"});
  EXPECT_EQ(pictures.exit_code, 0) << pictures.err;
  EXPECT_TRUE(fs::exists(folder_ / "p" / "reverse.png"));
  const Outcome table = call("bench", {"--backends", "--steps", "2", "--batch", "2"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_CONTAINS(table.out, "CPU, fused, f32");
}

TEST_F(LowRes, SaysWhatIsMissing) {
  const std::string out = (folder_ / "none.png").string(), small = (folder_ / "small").string();
  expect_refused(call("sample", {"--out", out}), 2, {"enlarges images of 4x4x1", "--low-res"});
  expect_refused(call("sample", {"--out", out, "--low-res", (folder_ / "no").string()}), 2,
                 {"--low-res '", "does not exist"});
  fs::create_directories(folder_ / "empty");
  expect_refused(call("sample", {"--out", out, "--low-res", (folder_ / "empty").string()}), 2,
                 {"--low-res: the folder '", "is empty"});
  write_images(folder_ / "bad", 2);
  write_file(folder_ / "bad" / "page.png", "<!DOCTYPE html><html></html>");
  const Outcome bad = call("sample", {"--out", out, "--low-res", (folder_ / "bad").string()});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_CONTAINS(bad.err, "--low-res: 1 of 3 image files");
  EXPECT_CONTAINS(bad.err, "remove or replace them\n");  // There is no --on-bad-image.
  // What is wrong with other flags is said before any image is looked for.
  const std::string none = (folder_ / "no").string();
  expect_refused(call("sample", {"--out", out, "--low-res", none, "--class", "0"}), 2, {"--class 0", "no classes"});
  expect_refused(call("sample", {"--out", (folder_ / "no" / "a.png").string(), "--low-res", none}), 2,
                 {"cannot write"});
  expect_refused(call("visualize", {"--out", (folder_ / "p").string(), "--low-res", none, "--class", "0"}), 2,
                 {"--class 0", "no classes"});
  EXPECT_FALSE(fs::exists(folder_ / "p"));
  EXPECT_FALSE(fs::exists(out));
  const fs::path plain = folder_ / "plain";
  EXPECT_EQ(difuse(train_words(folder_ / "data", plain, {"--steps", "1"})).exit_code, 0);
  expect_refused(difuse({"sample", "--checkpoint", plain.string(), "--out", out, "--low-res", small}), 2,
                 {"--low-res", "enlarges no images"});
  write_file(folder_ / "sr.toml", "preset = \"tiny\"\n[model]\nconditioning_channels = 1\nlow_res_factor = 3\n");
  expect_refused(train(folder_ / "b", {"--steps", "1"}), 2, {"height 8", "3 times", "12"});
  write_file(folder_ / "sr.toml", "preset = \"tiny\"\n[model]\nconditioning_channels = 2\n");
  expect_refused(train(folder_ / "b", {"--steps", "1"}), 2, {"second image has 2 channels"});
  write_file(folder_ / "sr.toml", kEnlarging);
  fs::remove_all(folder_ / "data");  // Nobody looks for it before.
  expect_refused(train(folder_ / "b", {"--steps", "1", "--channels", "3"}), 2,
                 {"--channels 3", "conditioning_channels = 3"});
  EXPECT_FALSE(fs::exists(folder_ / "b"));
}

}  // namespace
}  // namespace difuse::test
