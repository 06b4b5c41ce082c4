// Drawing with the real binary.
#include <gtest/gtest.h>

#include "runtime/png.h"
#include "tests/cli/failure.h"
#include "tests/cli/process.h"
#include "tests/cli/tiny_data.h"

namespace difuse::test {
namespace {

namespace fs = std::filesystem;

class Sample : public ::testing::Test {
 protected:
  Sample() {
    write_idx(folder_ / "blobs-idx3-ubyte", 40);
    const Outcome outcome = difuse(train_words(folder_ / "blobs-idx3-ubyte", run(), {"--steps", "20"}));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  }

  fs::path run() const { return folder_ / "run"; }

  runtime::Image draw(const Words& more) {
    Words words = {"sample", "--checkpoint", run().string(), "--out", (folder_ / "a.png").string()};
    words.insert(words.end(), more.begin(), more.end());
    last_ = difuse(words);
    EXPECT_EQ(last_.exit_code, 0) << last_.out << last_.err;
    return runtime::read_png(folder_ / "a.png");
  }

  /// Image `at` of a grid of 8x8 images.
  static std::vector<uint8_t> tile(const runtime::Image& grid, int at) {
    constexpr int kSize = 8, kStep = kSize + 2;
    const int columns = grid.width / kStep;
    std::vector<uint8_t> pixels;
    for (int y = 0; y < kSize; ++y) {
      const int row = 2 + at / columns * kStep + y;
      const auto begin = grid.pixels.begin() + row * grid.width + 2 + at % columns * kStep;
      pixels.insert(pixels.end(), begin, begin + kSize);
    }
    return pixels;
  }

  TempFolder folder_;
  Outcome last_;
};

TEST_F(Sample, WritesAGridAndEndsWithItsPath) {
  const runtime::Image grid = draw({});
  EXPECT_EQ(grid.width, 4 * 10 + 2);
  EXPECT_EQ(grid.height, 4 * 10 + 2);
  EXPECT_EQ(grid.channels, 1);
  EXPECT_EQ(last_.last_line(), (folder_ / "a.png").string());
  EXPECT_TRUE(last_.out.starts_with("CPU backend: "));
  EXPECT_EQ(draw({"--n", "6", "--columns", "3", "--steps", "3"}).height, 2 * 10 + 2);
  EXPECT_NE(tile(grid, 0), tile(grid, 1));
}

TEST_F(Sample, AnImageDependsOnTheSeedAndItsNumberAlone) {
  for (const Words& sampler : {Words{"--steps", "10"}, Words{"--sampler", "ddpm", "--steps", "10"}}) {
    const auto with = [&](Words more) {
      more.insert(more.end(), sampler.begin(), sampler.end());
      return draw(more);
    };
    const runtime::Image grid = with({"--n", "16", "--batch", "16", "--threads", "2"});
    EXPECT_EQ(with({"--n", "16", "--batch", "5", "--threads", "1"}).pixels, grid.pixels);
    for (const int i : {0, 5, 15}) {
      EXPECT_EQ(with({"--n", "1", "--first-index", std::to_string(i)}).pixels, tile(grid, i)) << i;
    }
    EXPECT_NE(with({"--n", "16", "--seed", "1"}).pixels, grid.pixels);
  }
}

TEST_F(Sample, BatchesAreOfOneSizeAndNoLargerThanTheImages) {
  const Words how = {"--steps", "5", "--columns", "17", "--n", "17"};
  const auto with = [&](Words more) {
    more.insert(more.end(), how.begin(), how.end());
    return draw(more);
  };
  const runtime::Image grid = with({"--batch", "17"});
  EXPECT_EQ(with({}).pixels, grid.pixels);  // 9 and 8.
  EXPECT_EQ(with({"--batch", "65536"}).pixels, grid.pixels);
  EXPECT_EQ(with({"--batch", "6"}).pixels, grid.pixels);
}

TEST_F(Sample, WeightsAreAveragedUnlessAskedOtherwise) {
  const Words few = {"--n", "4", "--steps", "5"};
  const auto plain = draw(few).pixels;
  EXPECT_EQ(draw({"--n", "4", "--steps", "5", "--weights", "ema"}).pixels, plain);
  EXPECT_NE(draw({"--n", "4", "--steps", "5", "--weights", "raw"}).pixels, plain);
}

TEST_F(Sample, TheVarianceOfAStep) {
  const auto small = draw({"--n", "2", "--steps", "5", "--variance", "small"}).pixels;
  EXPECT_EQ(draw({"--n", "2", "--steps", "5"}).pixels, small);
  EXPECT_NE(draw({"--n", "2", "--steps", "5", "--variance", "large"}).pixels, small);
}

TEST_F(Sample, RefusesWhatTheCheckpointCannotDo) {
  const std::string out = (folder_ / "none.png").string(), from = run().string();
  expect_refused(difuse({"sample", "--checkpoint", from, "--out", out, "--steps", "1001"}), 2,
                 {"--steps 1001", "1000 timesteps"});
  expect_refused(difuse({"sample", "--checkpoint", from, "--out", out, "--weights", "ema_1"}), 2,
                 {"--weights 'ema_1'", "raw, ema"});
  expect_refused(difuse({"sample", "--checkpoint", from, "--out", out, "--sampler", "ddpm", "--eta", "1"}), 2,
                 {"--eta"});
  expect_refused(difuse({"sample", "--checkpoint", from, "--out", (folder_ / "no" / "a.png").string()}), 2,
                 {"no", "does not exist"});
  expect_refused(difuse({"sample", "--checkpoint", from, "--out", out, "--n", "200000", "--columns", "1"}), 2,
                 {"--n", "pixels"});
  EXPECT_FALSE(fs::exists(out));
  expect_refused(difuse({"sample", "--checkpoint", from, "--out", (folder_ / "a.jpg").string()}), 2, {"a.jpg", ".png"});
  write_file(folder_ / "notes.png", "notes");
  expect_refused(difuse({"sample", "--checkpoint", from, "--out", (folder_ / "notes.png").string()}), 2,
                 {"notes.png", "not a PNG"});
  EXPECT_EQ(read_file(folder_ / "notes.png"), "notes");
}

}  // namespace
}  // namespace difuse::test
