#include "runtime/data/load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "runtime/data/folder/ordered_pool.h"
#include "runtime/data/folder/scan.h"
#include "runtime/data/loader.h"
#include "tests/runtime/dirty_corpus.h"
#include "tests/runtime/pixels_of.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/images/encoders.h"
#include "tests/support/temp_folder.h"

namespace difuse::runtime {
namespace {

using namespace difuse::test;
using namespace std::string_literals;
namespace fs = std::filesystem;

/// Everything that was said, one line each.
struct Heard {
  std::string said, warned;
  std::int64_t done = 0;
  LoadReport report() {
    return {[this](std::string_view line) { said += std::string(line) + '\n'; },
            [this](std::string_view line) { warned += std::string(line) + '\n'; },
            [this](std::int64_t now, std::int64_t) {
              EXPECT_EQ(now, done + 1);
              done = now;
            }};
  }
};

struct Loaded {
  ImageSet set;
  Heard heard;
};

Loaded load(const fs::path& path, const LoadSettings& settings) {
  Loaded loaded;
  loaded.set = load_images(path, settings, loaded.heard.report());
  return loaded;
}

std::string error_for(const fs::path& path, const LoadSettings& settings) {
  return error_of([&] { load(path, settings); });
}

/// A PNG of one colour.
std::string flat(int width, int height, int value) {
  return encode_png({.width = width, .height = height}, [value](int, int, int) { return value; });
}

void put(const fs::path& path, const std::string& contents) {
  fs::create_directories(path.parent_path());
  write_file(path, contents);
}

/// Six 4x4 images of values 10, 20, ... in the classes ant (3), bee (2), cat (1); not written in order.
void write_classes(const fs::path& folder) {
  put(folder / "cat/one.png", flat(4, 4, 60));
  put(folder / "bee/sub/folder/two.png", flat(4, 4, 50));
  put(folder / "bee/one.png", flat(4, 4, 40));
  put(folder / "ant/3.png", flat(4, 4, 30));
  put(folder / "ant/1.png", flat(4, 4, 10));
  put(folder / "ant/2.png", flat(4, 4, 20));
}

std::vector<int> first_pixels(const ImageSet& set) {
  std::vector<int> values;
  for (std::int64_t i = 0; i < set.count; ++i) values.push_back(set.pixels[i * set.image_bytes()]);
  return values;
}

LoadSettings skipping(int channels = 3) {
  LoadSettings settings;
  settings.size = {16, 16};
  settings.channels = channels;
  settings.on_bad_image = OnBadImage::skip;
  return settings;
}

TEST(LoadFolder, TakesTheDirtyFolder) {
  const TempFolder folder;
  write_dirty_folder(folder.path());
  std::int64_t used = kLinksUsed, bad = kLinksBad;
  std::map<std::string, int> kinds;
  ++kinds["PNG RGB"];  // The link.
  for (const DirtyFile& file : dirty_files()) {
    used += file.fate == Fate::used;
    bad += file.fate == Fate::bad;
    if (file.fate == Fate::used) ++kinds[file.says];
  }
  for (const int channels : {1, 3, 4}) {
    const Loaded loaded = load(folder.path(), skipping(channels));
    EXPECT_EQ(loaded.set.count, used);
    EXPECT_EQ(std::ssize(loaded.set.pixels), used * 16 * 16 * channels);
    EXPECT_EQ(loaded.heard.done, used + bad - kLinksBad);
    EXPECT_CONTAINS(loaded.set.summary, std::to_string(bad) + " bad files skipped");
    EXPECT_CONTAINS(loaded.heard.warned, std::to_string(bad) + " of " + std::to_string(used + bad) + " image files");
    EXPECT_CONTAINS(loaded.heard.warned, "\n  bad/bomb.jpg is too large");
    EXPECT_CONTAINS(loaded.heard.warned, "\n  and " + std::to_string(bad - 20) + " more");
    EXPECT_CONTAINS(loaded.heard.said,
                    "ignored: 2 hidden, 1 x a GIF image, 1 x a device or a pipe, 1 x a text file, 1 x an empty file, "
                    "2 x a link to a folder that is read anyway");
    for (const auto& [kind, count] : kinds) {
      // "  PNG 16-bit grey      1  scaled to 8 bits, ..."
      const std::size_t at = loaded.heard.said.find("\n  " + kind + "  ");
      ASSERT_NE(at, std::string::npos) << kind;
      EXPECT_EQ(std::atoi(loaded.heard.said.c_str() + at + 3 + kind.size()), count) << kind;
    }
  }
  LoadSettings strict = skipping();
  strict.on_bad_image = OnBadImage::error;
  const std::string error = error_for(folder.path(), strict);
  EXPECT_CONTAINS(error, std::to_string(bad) + " of " + std::to_string(used + bad) + " image files");
  EXPECT_CONTAINS(error, "bad/empty.png is empty");
  EXPECT_CONTAINS(error, "--on-bad-image skip");
}

TEST(LoadFolder, DoesNotDependOnThreads) {
  const TempFolder folder;
  write_dirty_folder(folder.path());
  LoadSettings settings = skipping();
  settings.threads = 1;
  const std::vector<std::uint8_t> one = pixels_of(load(folder.path(), settings).set);
  for (const int threads : {2, 7, 100}) {
    settings.threads = threads;
    EXPECT_EQ(pixels_of(load(folder.path(), settings).set), one);
  }
}

TEST(LoadFolder, LabelsFromFolders) {
  const TempFolder folder;
  write_classes(folder.path());
  LoadSettings settings;
  settings.channels = 1;
  EXPECT_TRUE(load(folder.path(), settings).set.labels.empty());
  settings.class_from_folder = true;
  const Loaded loaded = load(folder.path(), settings);
  EXPECT_EQ(first_pixels(loaded.set), (std::vector<int>{10, 20, 30, 40, 50, 60}));
  EXPECT_EQ(loaded.set.labels, (std::vector<std::int32_t>{0, 0, 0, 1, 1, 2}));
  EXPECT_EQ(loaded.set.class_names, (std::vector<std::string>{"ant", "bee", "cat"}));
  EXPECT_EQ(class_counts(loaded.set), (std::vector<std::int64_t>{3, 2, 1}));
  EXPECT_CONTAINS(loaded.heard.said, "class    1         2 images  bee");
  EXPECT_CONTAINS(loaded.set.summary, "6 images of 4x4x1 from ");
  EXPECT_CONTAINS(loaded.set.summary, ", 3 classes");

  put(folder / "bee/broken.png", "no image");
  EXPECT_CONTAINS(error_for(folder.path(), settings), "bee/broken.png is a text file");
  settings.on_bad_image = OnBadImage::skip;
  EXPECT_EQ(load(folder.path(), settings).set.labels, (std::vector<std::int32_t>{0, 0, 0, 1, 1, 2}));
  put(folder / "dog/broken.png", "no image");
  EXPECT_CONTAINS(error_for(folder.path(), settings), "class 'dog' has no usable image");
  put(folder / "loose.png", flat(4, 4, 0));
  EXPECT_CONTAINS(error_for(folder.path(), settings), "loose.png' lies in no class folder");
  settings.class_from_folder = false;
  EXPECT_EQ(load(folder.path(), settings).set.count, 7);
}

TEST(LoadFolder, MissingEmptyAndUselessAreThreeMessages) {
  const TempFolder folder;
  const auto error = [&](const char* name) { return error_for(folder / name, skipping()); };
  EXPECT_CONTAINS(error("none"), "none' does not exist");
  fs::create_directories(folder / "empty/with/folders");
  EXPECT_CONTAINS(error("empty"), "empty' is empty");
  put(folder / "text/notes.txt", "text");
  put(folder / "text/more.md", "text");
  EXPECT_CONTAINS(error("text"), "text' holds no usable image: ignored: 2 x a text file");
  put(folder / "broken/a.png", "text");
  put(folder / "broken/b.jpg", "");
  EXPECT_CONTAINS(error("broken"), "holds no usable image: all 2 image files are bad:\n  a.png is a text file");
  EXPECT_CONTAINS(error("broken"), "\n  b.jpg is empty");
  EXPECT_CONTAINS(error_for(folder / "broken", {}), "holds no usable image");
}

TEST(LoadFolder, NeedsOneSizeOrTheFlag) {
  const TempFolder folder;
  put(folder / "a.png", "broken");
  put(folder / "b.png", flat(4, 6, 1));
  put(folder / "c.png", flat(4, 6, 2));
  LoadSettings settings;
  settings.on_bad_image = OnBadImage::skip;
  const Loaded loaded = load(folder.path(), settings);
  EXPECT_EQ(loaded.set.height, 6);
  EXPECT_EQ(loaded.set.width, 4);
  EXPECT_EQ(loaded.set.channels, 3);
  EXPECT_CONTAINS(loaded.heard.said, "size 6x4 (height x width), as it is");
  put(folder / "d.png", flat(5, 6, 3));
  const std::string error = error_for(folder.path(), settings);
  EXPECT_CONTAINS(error, "several sizes: 'b.png' is 6x4, 'd.png' is 6x5 (height x width)");
  EXPECT_CONTAINS(error, "--image-size");
  settings.size = {2, 2};
  EXPECT_CONTAINS(load(folder.path(), settings).heard.said, "sizes 6x4 to 6x5 (height x width), 3 of 3 brought to 2x2");
  settings.size = {6, 4};
  EXPECT_CONTAINS(load(folder.path(), settings).heard.said, "1 of 3 brought to 6x4");
  settings.channels = 2;
  EXPECT_CONTAINS(error_for(folder.path(), settings), "--channels 2");
}

TEST(LoadFolder, LookingKeepsNothing) {
  const TempFolder folder, cache;
  write_classes(folder / "data");
  LoadSettings settings;
  settings.look_only = true;
  settings.cache_folder = cache / "images";
  settings.class_from_folder = true;
  const Loaded looked = load(folder / "data", settings);
  EXPECT_EQ(looked.set.count, 6);
  EXPECT_TRUE(looked.set.pixels.empty());
  EXPECT_EQ(looked.set.labels.size(), 6u);
  EXPECT_EQ(looked.set.class_names.size(), 3u);
  EXPECT_CONTAINS(looked.heard.said, "PNG grey");
  EXPECT_EQ(cache.entries(), 0u);

  // Several sizes are a finding, not a fault.
  put(folder / "data/cat/wide.png", flat(9, 4, 1));
  const Loaded several = load(folder / "data", settings);
  EXPECT_CONTAINS(several.heard.said, "sizes 4x4 to 4x9 (height x width)\n");
  EXPECT_CONTAINS(several.set.summary, "7 images of several sizes");
  settings.size = {2, 2};
  EXPECT_EQ(load(folder / "data", settings).set.height, 2);
}

TEST(LoadImages, TellsIdxFromFoldersAndSingleImages) {
  const TempFolder folder;
  const std::string idx = "\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x02"s + "aaaazzzz";
  put(folder / "idx/train-images", idx);
  put(folder / "idx/preview.png", flat(3, 3, 9));
  LoadSettings settings;
  EXPECT_EQ(load(folder / "idx", settings).set.count, 2);
  EXPECT_EQ(load(folder / "idx", settings).set.channels, 1);
  settings.size = {1, 1};
  settings.channels = 3;
  const ImageSet fitted = load(folder / "idx/train-images", settings).set;
  EXPECT_EQ(pixels_of(fitted), (std::vector<std::uint8_t>{'a', 'a', 'a', 'z', 'z', 'z'}));
  EXPECT_CONTAINS(fitted.summary, "brought to 1x1x3");
  settings.class_from_folder = true;
  EXPECT_CONTAINS(error_for(folder / "idx", settings), "--class-from-folder needs a folder of images");

  settings = {};
  const ImageSet single = load(folder / "idx/preview.png", settings).set;
  EXPECT_EQ(single.count, 1);
  EXPECT_EQ(pixels_of(single), std::vector<std::uint8_t>(27, 9));
  EXPECT_CONTAINS(single.summary, "PNG grey: grey repeated");
  put(folder / "broken.png", "text");
  EXPECT_CONTAINS(error_for(folder / "broken.png", settings), "broken.png' is a text file");
  put(folder / "notes.txt", "text");
  EXPECT_CONTAINS(error_for(folder / "notes.txt", settings), "notes.txt' holds no image");
}

TEST(Labels, AreCheckedOnTheHost) {
  ImageSet set;
  EXPECT_CONTAINS(error_of([&] { check_labels(set, 3); }), "no labels");
  set.labels = {0, 2, 1, 5, 3};
  EXPECT_EQ(error_of([&] { check_labels(set, 6); }), "");
  EXPECT_CONTAINS(error_of([&] { check_labels(set, 3); }),
                  "image 3 has label 5, but the model has 3 classes (0 to 2); 2 of 5");
  EXPECT_CONTAINS(error_of([&] { check_labels(set, 3); }), "give the model 6 classes");
  set.labels[1] = -1;
  EXPECT_CONTAINS(error_of([&] { check_labels(set, 6); }), "image 1 has label -1");
  EXPECT_EQ(class_counts(set), (std::vector<std::int64_t>{1, 1, 0, 1, 0, 1}));
}

TEST(Scan, WalksInByteOrderAndEndsInLoops) {
  const TempFolder folder;
  for (const char* name : {"b/1.png", "a/2.png", "a-/3.png", "B/4.png", "a/sub/5.png"})
    put(folder / name, flat(1, 1, 0));
  fs::create_directory_symlink("a", folder / "0_link_to_a");
  fs::create_directory_symlink(".", folder / "a/self");
  const TempFolder elsewhere;
  put(elsewhere / "6.png", flat(1, 1, 0));
  fs::create_directory_symlink(elsewhere.path(), folder / "c");
  fs::create_directory_symlink(folder.path(), elsewhere / "back");
  const Scan scan = scan_folder(folder.path());
  std::vector<std::string> names;
  for (const ImageFile& file : scan.files) names.push_back(file.name);
  EXPECT_EQ(names, (std::vector<std::string>{"B/4.png", "a-/3.png", "a/2.png", "a/sub/5.png", "b/1.png", "c/6.png"}));
  EXPECT_EQ(scan.repeated, 3);
  EXPECT_EQ(scan.folders, 7);
  EXPECT_TRUE(scan.bad.empty());
}

TEST(OrderedPool, HandsOutInOrderAndStopsAtTheFirstFailure) {
  for (const int threads : {1, 3, 8}) {
    std::vector<std::int64_t> taken;
    run_in_order<std::int64_t>(
        200, threads, 10, [](std::int64_t i) { return i * i; },
        [&](std::int64_t i, std::int64_t square) {
          EXPECT_EQ(square, i * i);
          taken.push_back(i);
        });
    EXPECT_EQ(taken.size(), 200u);
    EXPECT_TRUE(std::is_sorted(taken.begin(), taken.end()));

    const auto failing = [&](std::int64_t work_fails, std::int64_t take_fails) {
      std::int64_t last = -1;
      const std::string error = error_of([&] {
        run_in_order<int>(
            1'000'000, threads, 10,
            [&](std::int64_t i) {
              if (i == work_fails) throw Error("work");
              return 0;
            },
            [&](std::int64_t i, int) {
              if (i == take_fails) throw Error("take");
              last = i;
            });
      });
      EXPECT_EQ(last, std::min(work_fails, take_fails) - 1);
      return error;
    };
    EXPECT_CONTAINS(failing(50, 1'000'000), "work");
    EXPECT_CONTAINS(failing(1'000'000, 50), "take");
  }
}

class LoadCache : public ::testing::Test {
 protected:
  LoadCache() {
    write_classes(data());
    settings_.cache_folder = folder_ / "cache/difuse";
    settings_.channels = 1;
    settings_.class_from_folder = true;
  }
  fs::path data() const { return folder_ / "data"; }
  fs::path cache_file() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(settings_.cache_folder)) files.push_back(entry.path());
    EXPECT_EQ(files.size(), 1u);
    return files.empty() ? fs::path() : files.front();
  }
  Loaded loaded() const { return load(data(), settings_); }
  void expect_classes(const Loaded& result) const {
    EXPECT_EQ(first_pixels(result.set), (std::vector<int>{10, 20, 30, 40, 50, 60}));
    EXPECT_EQ(result.set.labels, (std::vector<std::int32_t>{0, 0, 0, 1, 1, 2}));
  }

  TempFolder folder_;
  LoadSettings settings_;
};

TEST_F(LoadCache, IsMappedTheSecondTime) {
  const Loaded first = loaded();
  expect_classes(first);
  EXPECT_CONTAINS(first.heard.said, "decoded into " + cache_file().string());
  EXPECT_EQ(first.heard.done, 6);
  const auto time = fs::last_write_time(cache_file());
  const Loaded second = loaded();
  expect_classes(second);
  EXPECT_EQ(second.heard.done, 0);  // Nothing was decoded.
  EXPECT_CONTAINS(second.heard.said, "decoded before: " + cache_file().string());
  EXPECT_CONTAINS(second.heard.said, "PNG grey         6  as it is");
  EXPECT_EQ(second.set.summary, first.set.summary);
  EXPECT_EQ(fs::last_write_time(cache_file()), time);
  EXPECT_EQ(first.heard.warned + second.heard.warned, "");

  // The mapping outlives the file and feeds the loader.
  fs::remove(cache_file().string());
  Loader loader(second.set, {.batch = 6, .seed = 1, .flip = false, .start = {}});
  std::vector<std::uint8_t> pixels(6 * 16);
  std::vector<std::int32_t> labels(6);
  loader.next(pixels, labels, {});
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(labels[i], pixels[i * 16] <= 30 ? 0 : pixels[i * 16] <= 50 ? 1 : 2);
  }
}

TEST_F(LoadCache, IsMadeAgainWhenAFileChanges) {
  loaded();
  const fs::path first = cache_file();
  put(data() / "cat/one.png", flat(4, 4, 61));
  fs::last_write_time(data() / "cat/one.png", fs::file_time_type::clock::now() + std::chrono::seconds(5));
  const Loaded changed = loaded();
  EXPECT_EQ(first_pixels(changed.set).back(), 61);
  EXPECT_CONTAINS(changed.heard.said, "is of other contents: the files have changed since; it is made again");
  EXPECT_EQ(cache_file(), first);  // In the old one's place.
  put(data() / "dog/one.png", flat(4, 4, 70));
  EXPECT_EQ(loaded().set.count, 7);
  fs::remove(data() / "dog/one.png");
  EXPECT_EQ(loaded().set.count, 6);
  EXPECT_EQ(loaded().heard.done, 0);
}

TEST_F(LoadCache, KeepsSettingsApart) {
  loaded();
  settings_.size = {2, 2};
  EXPECT_EQ(loaded().heard.done, 6);
  settings_.crop = Crop::none;
  EXPECT_EQ(loaded().heard.done, 6);
  settings_.channels = 3;
  EXPECT_EQ(loaded().heard.done, 6);
  settings_.class_from_folder = false;
  EXPECT_EQ(loaded().heard.done, 0);  // Labels are no part of it.
  EXPECT_EQ(std::distance(fs::directory_iterator(settings_.cache_folder), {}), 4);
}

TEST_F(LoadCache, DamageAnywhereButInPixelsIsFound) {
  loaded();
  const fs::path path = cache_file();
  const std::string good = read_file(path);
  constexpr std::size_t kPixels = 6 * 16, kPixelsBegin = 64;
  for (std::size_t at = 0; at < good.size(); at = at == kPixelsBegin - 1 ? kPixelsBegin + kPixels : at + 1) {
    std::string damaged = good;
    damaged[at] ^= 4;
    write_file(path, damaged);
    const Loaded again = loaded();
    expect_classes(again);
    ASSERT_EQ(again.heard.done, 6) << at;
    EXPECT_CONTAINS(again.heard.said, "it is made again");
    ASSERT_EQ(read_file(path), good);
  }
  for (const std::string& foreign :
       {""s, "text"s, good.substr(0, good.size() - 1), good + "!", std::string(500, 'x')}) {
    write_file(path, foreign);
    expect_classes(loaded());
    ASSERT_EQ(read_file(path), good);
  }
}

TEST_F(LoadCache, RemembersBadFilesForBothPolicies) {
  put(data() / "bee/broken.png", "text");
  const std::string first = error_for(data(), settings_);
  EXPECT_CONTAINS(first, "bee/broken.png is a text file");
  EXPECT_EQ(error_for(data(), settings_), first);
  settings_.on_bad_image = OnBadImage::skip;
  const Loaded skipped = loaded();
  expect_classes(skipped);
  EXPECT_EQ(skipped.heard.done, 0);
  EXPECT_CONTAINS(skipped.heard.warned, "bee/broken.png is a text file");
}

TEST_F(LoadCache, StaysInMemoryWhereNothingCanBeWritten) {
  put(folder_ / "file", "");
  settings_.cache_folder = folder_ / "file/cache";
  const Loaded result = loaded();
  expect_classes(result);
  EXPECT_CONTAINS(result.heard.warned, "the decoded images stay in memory only, without a cache: cannot write");
  EXPECT_EQ(std::count(result.heard.warned.begin(), result.heard.warned.end(), '\n'), 1);
}

TEST_F(LoadCache, FullDiskLeavesNothing) {
  settings_.size = {128, 128};
  Loaded result;
  {
    const FileSizeLimit limit(4096);
    result = loaded();
  }
  EXPECT_EQ(result.set.count, 6);
  EXPECT_EQ(first_pixels(result.set), (std::vector<int>{10, 20, 30, 40, 50, 60}));
  EXPECT_CONTAINS(result.heard.warned, "stay in memory only");
  EXPECT_EQ(std::distance(fs::directory_iterator(settings_.cache_folder), {}), 0);
}

TEST_F(LoadCache, StoppingLeavesNothing) {
  LoadReport report;
  report.progress = [](std::int64_t done, std::int64_t) {
    if (done == 3) throw Error("stopped");
  };
  EXPECT_CONTAINS(error_of([&] { load_images(data(), settings_, report); }), "stopped");
  EXPECT_EQ(std::distance(fs::directory_iterator(settings_.cache_folder), {}), 0);
}

TEST_F(LoadCache, RemovesWhatKilledProcessesLeft) {
  loaded();
  const fs::path path = cache_file(), old = path.string() + ".tmp.1", young = path.string() + ".tmp.2";
  put(old, "half");
  put(young, "half");
  fs::last_write_time(old, fs::file_time_type::clock::now() - std::chrono::hours(48));
  put(data() / "dog/one.png", flat(4, 4, 70));
  loaded();
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(young));
}

}  // namespace
}  // namespace difuse::runtime
