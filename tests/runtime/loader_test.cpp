#include "runtime/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ir/philox.h"
#include "runtime/data/shuffle.h"
#include "tests/support/temp_folder.h"

namespace difuse::runtime {
namespace {

using namespace difuse::test;

constexpr std::uint64_t kSeed = 0x0123456789abcdef;

/// `count` images of 1 x 2 pixels; image i is (i, 255 - i), its label 1000 + i.
ImageSet numbered(int count) {
  ImageSet set;
  set.count = count;
  set.height = 1;
  set.width = 2;
  set.channels = 1;
  std::vector<std::uint8_t> pixels;
  for (int i = 0; i < count; ++i) {
    pixels.push_back(static_cast<std::uint8_t>(i));
    pixels.push_back(static_cast<std::uint8_t>(255 - i));
    set.labels.push_back(1000 + i);
  }
  set.own(std::move(pixels));
  return set;
}

struct Drawn {
  std::vector<int> images;
  std::vector<int> flips;
};

/// The numbers of the next `batches` batches' images; checks that pixels and labels belong together.
Drawn draw(Loader& loader, int batches) {
  Drawn drawn;
  const auto batch = static_cast<std::size_t>(loader.batch());
  std::vector<std::uint8_t> pixels(batch * 2);
  std::vector<std::int32_t> labels(batch);
  std::vector<std::uint8_t> flips(batch);
  for (int b = 0; b < batches; ++b) {
    loader.next(pixels, labels, flips);
    for (std::size_t i = 0; i < batch; ++i) {
      EXPECT_EQ(pixels[2 * i] + pixels[2 * i + 1], 255);
      EXPECT_EQ(labels[i], 1000 + pixels[2 * i]);
      drawn.images.push_back(pixels[2 * i]);
      drawn.flips.push_back(flips[i]);
    }
  }
  return drawn;
}

// The known answers of the Random123 library (kat_vectors, philox4x32 10).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(ir::philox({0, 0, 0, 0}, {0, 0}), (ir::Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(ir::philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (ir::Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(ir::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (ir::Philox4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The right values come from a second implementation of the header's definition, in Python with big integers.
TEST(Shuffle, IsTheDefinedPermutation) {
  std::vector<std::int64_t> order(10);
  shuffle_epoch(order, kSeed, 0);
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 4, 2, 6, 9, 7, 1, 5, 3, 8}));
  shuffle_epoch(order, kSeed, 1);
  EXPECT_EQ(order, (std::vector<std::int64_t>{9, 6, 0, 3, 8, 7, 1, 2, 5, 4}));
  shuffle_epoch(order, kSeed, 7);
  EXPECT_EQ(order, (std::vector<std::int64_t>{4, 5, 7, 8, 1, 0, 2, 3, 6, 9}));
}

TEST(Shuffle, PutsEveryImageEverywhereEquallyOften) {
  constexpr int kSize = 5;
  constexpr int kEpochs = 20'000;
  int counts[kSize][kSize] = {};
  std::vector<std::int64_t> order(kSize);
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    shuffle_epoch(order, kSeed, static_cast<std::uint32_t>(epoch));
    for (int i = 0; i < kSize; ++i) ++counts[i][order[i]];
  }
  // Binomial with p = 1/5: five standard deviations are 283.
  for (const auto& row : counts) {
    for (const int count : row) EXPECT_NEAR(count, kEpochs / kSize, 283);
  }
}

TEST(Loader, HandsOutEpochAfterEpochAcrossBatches) {
  Loader loader(numbered(10), {.batch = 4, .seed = kSeed, .flip = true, .start = {}});
  const Drawn drawn = draw(loader, 5);
  EXPECT_EQ(drawn.images, (std::vector<int>{0, 4, 2, 6, 9, 7, 1, 5, 3, 8, 9, 6, 0, 3, 8, 7, 1, 2, 5, 4}));
  const std::vector<int> flips = {1, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 0, 0};
  EXPECT_TRUE(std::equal(flips.begin(), flips.end(), drawn.flips.begin()));
  EXPECT_EQ(loader.cursor().position, 20u);
  EXPECT_EQ(loader.epoch(), 2u);
}

TEST(Loader, SequenceDoesNotDependOnTheBatchSize) {
  Loader one(numbered(10), {.batch = 1, .seed = 3, .flip = true, .start = {}});
  Loader ten(numbered(10), {.batch = 10, .seed = 3, .flip = true, .start = {}});
  const Drawn a = draw(one, 60);
  const Drawn b = draw(ten, 6);
  EXPECT_EQ(a.images, b.images);
  EXPECT_EQ(a.flips, b.flips);
  const std::set<int> last_epoch(a.images.end() - 10, a.images.end());
  EXPECT_EQ(last_epoch.size(), 10u);
}

TEST(Loader, CursorContinuesExactly) {
  Loader whole(numbered(17), {.batch = 3, .seed = 5, .flip = true, .start = {}});
  draw(whole, 7);
  const Cursor cursor = whole.cursor();
  EXPECT_EQ(cursor.position, 21u);
  const Drawn rest = draw(whole, 20);

  Loader resumed(numbered(17), {.batch = 3, .seed = 5, .flip = true, .start = cursor});
  EXPECT_EQ(resumed.cursor(), cursor);
  const Drawn again = draw(resumed, 20);
  EXPECT_EQ(again.images, rest.images);
  EXPECT_EQ(again.flips, rest.flips);

  resumed.set_cursor(cursor);
  EXPECT_EQ(resumed.cursor(), cursor);
  EXPECT_EQ(draw(resumed, 20).images, rest.images);
}

TEST(Loader, FlipsOnlyWhenAsked) {
  Loader loader(numbered(8), {.batch = 8, .seed = 5, .flip = false, .start = {}});
  EXPECT_EQ(draw(loader, 4).flips, std::vector<int>(32, 0));
}

TEST(Loader, DoesNotMakeASlowTrainerWait) {
  Loader loader(numbered(100), {.batch = 10, .seed = 5, .flip = false, .start = {}});
  draw(loader, 1);
  const double after_first = loader.wait_seconds();
  constexpr int kSteps = 5;
  for (int i = 0; i < kSteps; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    draw(loader, 1);
  }
  EXPECT_GE(after_first, 0.0);
  EXPECT_LT(loader.wait_seconds() - after_first, 0.1 * kSteps / 2);
}

TEST(Loader, StopsAtAnyMoment) {
  for (int i = 0; i < 50; ++i) {
    Loader loader(numbered(100), {.batch = 50, .seed = 5, .flip = true, .start = {}});
    if (i % 2) draw(loader, i % 3);
    if (i % 5 == 0) loader.set_cursor({static_cast<std::uint64_t>(i)});
  }
}

TEST(Loader, RefusesWhatItCannotServe) {
  const auto error = [](ImageSet set, std::int64_t batch) {
    return error_of([&] { Loader loader(std::move(set), {.batch = batch, .seed = 0, .flip = false, .start = {}}); });
  };
  EXPECT_CONTAINS(error(numbered(3), 4), "holds 3 images, fewer than one batch of 4");
  EXPECT_CONTAINS(error(numbered(3), 4), "--batch 3 or less");
  EXPECT_CONTAINS(error(numbered(0), 1), "holds no image");
  EXPECT_CONTAINS(error(numbered(3), 0), "--batch 0");
  EXPECT_EQ(error(numbered(3), 3), "");

  ImageSet unlabelled = numbered(3);
  unlabelled.labels.clear();
  Loader loader(unlabelled, {.batch = 1, .seed = 0, .flip = false, .start = {}});
  std::vector<std::uint8_t> pixels(2);
  std::vector<std::int32_t> labels(1);
  loader.next(pixels, {}, {});
  EXPECT_CONTAINS(error_of([&] { loader.next(pixels, labels, {}); }), "labels are needed");
  EXPECT_EQ(loader.cursor().position, 1u);
}

}  // namespace
}  // namespace difuse::runtime
