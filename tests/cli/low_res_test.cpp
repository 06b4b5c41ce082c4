// Super-resolution with the real binary: a small model is trained to enlarge, and enlarges.
#include <gtest/gtest.h>

#include "runtime/png.h"
#include "tests/cli/failure.h"
#include "tests/cli/process.h"
#include "tests/cli/tiny_data.h"

namespace difuse::test {
namespace {

namespace fs = std::filesystem;

class LowRes : public testing::Test {
 protected:
  LowRes() {
    write_images(folder_ / "data", 16);
    write_images(folder_ / "small", 3, 4, 4);
    write_file(folder_ / "sr.toml", "preset = \"tiny\"\n[model]\nconditioning_channels = 1\nlow_res_factor = 2\n");
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
    return difuse(words);
  }
  runtime::Image draw(const Words& more) const {
    Words words = {"--steps", "4", "--out", (folder_ / "a.png").string()};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = call("sample", words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    return runtime::read_png(folder_ / "a.png");
  }

  TempFolder folder_;
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

TEST_F(LowRes, IsSeenAndMeasured) {
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
  EXPECT_FALSE(fs::exists(out));
  const fs::path plain = folder_ / "plain";
  EXPECT_EQ(difuse(train_words(folder_ / "data", plain, {"--steps", "1"})).exit_code, 0);
  expect_refused(difuse({"sample", "--checkpoint", plain.string(), "--out", out, "--low-res", small}), 2,
                 {"--low-res", "enlarges no images"});
  write_file(folder_ / "sr.toml", "preset = \"tiny\"\n[model]\nconditioning_channels = 1\nlow_res_factor = 3\n");
  expect_refused(train(folder_ / "b", {"--steps", "1"}), 2, {"height 8", "3 times", "9"});
  write_file(folder_ / "sr.toml", "preset = \"tiny\"\n[model]\nconditioning_channels = 2\n");
  expect_refused(train(folder_ / "b", {"--steps", "1"}), 2, {"second image has 2 channels"});
  EXPECT_FALSE(fs::exists(folder_ / "b"));
}

}  // namespace
}  // namespace difuse::test
