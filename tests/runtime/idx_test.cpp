#include "runtime/data/idx.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "tests/runtime/pixels_of.h"
#include "tests/support/temp_folder.h"

namespace difuse::runtime {
namespace {

using namespace difuse::test;
using namespace std::string_literals;
namespace fs = std::filesystem;

// Two images of 1 x 3 pixels, by hand, and the same bytes as Python's gzip module compresses them.
const std::string kImages =
    "\0\0\x08\x03"
    "\0\0\0\x02\0\0\0\x01\0\0\0\x03"
    "\x0a\x14\x1e\x28\x32\x3c"s;
constexpr unsigned char kGzip[] = {0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0x63, 0x60, 0xe0,
                                   0x60, 0x66, 0x60, 0x60, 0x60, 0x02, 0x62, 0x46, 0x20, 0x66, 0xe6, 0x12, 0x91,
                                   0xd3, 0x30, 0xb2, 0x01, 0x00, 0x11, 0x98, 0x38, 0xbe, 0x16, 0x00, 0x00, 0x00};
const std::string kImagesGzip(std::begin(kGzip), std::end(kGzip));
const std::string kLabels = "\0\0\x08\x01\0\0\0\x02\x07\x03"s;
const std::vector<std::uint8_t> kImagePixels = {10, 20, 30, 40, 50, 60};

std::string idx_error(const fs::path& path) {
  return error_of([&] { read_idx(path); });
}

std::string idx_error_of_contents(const std::string& contents) {
  const TempFolder folder;
  write_file(folder / "file", contents);
  const std::string error = idx_error(folder / "file");
  EXPECT_CONTAINS(error, (folder / "file").string());
  return error;
}

TEST(ReadIdx, ReadsAPlainFileWithItsLabels) {
  const TempFolder folder;
  write_file(folder / "my-images-idx3-ubyte", kImages);
  write_file(folder / "my-labels-idx1-ubyte", kLabels);
  const ImageSet set = read_idx(folder / "my-images-idx3-ubyte");
  EXPECT_EQ(set.count, 2);
  EXPECT_EQ(set.height, 1);
  EXPECT_EQ(set.width, 3);
  EXPECT_EQ(set.channels, 1);
  EXPECT_EQ(pixels_of(set), kImagePixels);
  EXPECT_EQ(set.labels, (std::vector<std::int32_t>{7, 3}));
  EXPECT_EQ(set.summary, "2 images of 1x3x1 from my-images-idx3-ubyte, labels of 2 classes from my-labels-idx1-ubyte");
}

TEST(ReadIdx, KnowsGzipByContent) {
  const TempFolder folder;
  write_file(folder / "no-extension", kImagesGzip);
  EXPECT_EQ(pixels_of(read_idx(folder / "no-extension")), kImagePixels);
  write_file(folder / "plain.gz", kImages);
  EXPECT_EQ(pixels_of(read_idx(folder / "plain.gz")), kImagePixels);
  EXPECT_EQ(read_idx(folder / "plain.gz").summary, "2 images of 1x3x1 from plain.gz, no labels");
}

TEST(ReadIdx, ChoosesTheTrainingSetOfAFolder) {
  const TempFolder folder;
  write_file(folder / "t10k-images-idx3-ubyte.gz", kImagesGzip);
  write_file(folder / "t10k-labels-idx1-ubyte", kLabels);
  write_file(folder / "README", "text");
  write_file(folder / "train-images-idx3-ubyte.gz", kImagesGzip);
  write_file(folder / "train-labels-idx1-ubyte", kLabels);
  fs::create_directory(folder / "subfolder");
  const ImageSet set = read_idx(folder.path());
  EXPECT_EQ(pixels_of(set), kImagePixels);
  EXPECT_EQ(set.labels.size(), 2u);
  EXPECT_CONTAINS(set.summary, "from train-images-idx3-ubyte.gz");
  EXPECT_CONTAINS(set.summary, "ignored: t10k-images-idx3-ubyte.gz");
  write_file(folder / "train-images-idx3-ubyte", kImages);
  EXPECT_CONTAINS(read_idx(folder.path()).summary, "from train-images-idx3-ubyte,");
  write_file(folder / "other-images", kImages);
  EXPECT_CONTAINS(read_idx(folder.path()).summary, "from train-images-idx3-ubyte,");
  EXPECT_CONTAINS(read_idx(folder.path()).summary, "other-images");
}

TEST(ReadIdx, TakesAFileWhoseNameOnlyContainsTest) {
  const TempFolder folder;
  write_file(folder / "latest-images", kImages);
  write_file(folder / "test-images", kImages);
  EXPECT_CONTAINS(read_idx(folder.path()).summary, "from latest-images, no labels; ignored: test-images");
}

TEST(ReadIdx, MissingEmptyAndUselessAreThreeMessages) {
  const TempFolder folder;
  EXPECT_CONTAINS(idx_error(folder / "none"), "none' does not exist");
  EXPECT_CONTAINS(idx_error(folder.path()), "' is empty");
  write_file(folder / "notes.txt", "text");
  EXPECT_CONTAINS(idx_error(folder.path()), "holds no IDX file of images, only notes.txt");
  EXPECT_CONTAINS(idx_error(folder / "notes.txt"), "holds no image: it is not an IDX file (wrong magic number)");
  EXPECT_CONTAINS(idx_error(folder / "notes.txt"), "train-images-idx3-ubyte.gz");
  write_file(folder / "t10k-images", kImages);
  EXPECT_CONTAINS(idx_error(folder.path()), "holds only a test set: t10k-images");
  write_file(folder / "a", kImages);
  write_file(folder / "b", kImages);
  EXPECT_CONTAINS(idx_error(folder.path()), "holds several image files: a, b");
}

TEST(ReadIdx, FilesWithoutImages) {
  EXPECT_CONTAINS(idx_error_of_contents(""), "holds no image: it is empty");
  EXPECT_CONTAINS(idx_error_of_contents("\0\0"s), "wrong magic");
  EXPECT_CONTAINS(idx_error_of_contents("\x89PNG\r\n\x1a\n"), "wrong magic");
  EXPECT_CONTAINS(idx_error_of_contents(kLabels), "IDX file of labels");
  EXPECT_CONTAINS(idx_error_of_contents("\0\0\x0d\x03"s + kImages.substr(4)), "element type is 0x0d");
  EXPECT_CONTAINS(idx_error_of_contents("\0\0\x08\x02"s + kImages.substr(4)), "rank is 2, not 3");
  EXPECT_CONTAINS(idx_error_of_contents("\0\0\x08\x03\0\0\0\0\0\0\0\x01\0\0\0\x01"s),
                  "holds no image: its header says 0");
}

TEST(ReadIdx, EveryTruncationIsAnError) {
  for (std::size_t size = 4; size < kImages.size(); ++size) {
    EXPECT_CONTAINS(idx_error_of_contents(kImages.substr(0, size)), "is truncated") << "at " << size;
  }
  for (std::size_t size = 2; size < kImagesGzip.size(); ++size) {
    EXPECT_CONTAINS(idx_error_of_contents(kImagesGzip.substr(0, size)), "is a truncated gzip file") << "at " << size;
  }
  EXPECT_CONTAINS(idx_error_of_contents(kImages.substr(0, 20)), "says 2 x 1 x 3, but it has only 4 bytes of data");
}

TEST(ReadIdx, CountsThatContradictTheFile) {
  EXPECT_CONTAINS(idx_error_of_contents(kImages + "!"), "more data follows");
  const std::string huge = "\0\0\x08\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"s;
  EXPECT_CONTAINS(idx_error_of_contents(huge), "has only 0 bytes of data");
  EXPECT_CONTAINS(idx_error_of_contents("\0\0\x08\x03\x7f\0\0\0\0\0\x01\0\0\0\x01\0"s + "abc"), "only 3 bytes of data");
}

TEST(ReadIdx, DamagedGzip) {
  std::string damaged = kImagesGzip;
  damaged[damaged.size() - 6] ^= 1;  // The checksum's last byte.
  EXPECT_CONTAINS(idx_error_of_contents(damaged), "damaged gzip file");
  damaged = kImagesGzip;
  damaged[10] = '\xff';  // A block type that does not exist.
  EXPECT_CONTAINS(idx_error_of_contents(damaged), "damaged gzip file");
  const TempFolder folder;
  write_file(folder / "train-images-idx3-ubyte.gz", damaged);
  EXPECT_CONTAINS(idx_error(folder.path()), "train-images-idx3-ubyte.gz' is a damaged gzip file");
}

TEST(ReadIdx, ReadsLargeAndConcatenatedGzip) {
  const TempFolder folder;
  std::string contents = "\0\0\x08\x03\0\0\x03\xe8\0\0\0\x1c\0\0\0\x1c"s;
  for (unsigned i = 0; i < 1000 * 28 * 28; ++i) contents += static_cast<char>(i * i >> 3);
  const std::string path = (folder / "big").string();
  for (const auto& [mode, begin, size] : {std::tuple("wb", 0, 100'000), std::tuple("ab", 100'000, 684'016)}) {
    gzFile file = gzopen(path.c_str(), mode);
    ASSERT_EQ(gzwrite(file, contents.data() + begin, size), size);
    gzclose(file);
  }
  const ImageSet set = read_idx(path);
  EXPECT_EQ(set.count, 1000);
  EXPECT_TRUE(std::equal(set.pixels.begin(), set.pixels.end(), contents.begin() + 16,
                         [](std::uint8_t a, char b) { return a == static_cast<std::uint8_t>(b); }));
}

TEST(ReadIdx, LabelsMustBelongToTheImages) {
  const TempFolder folder;
  write_file(folder / "images", kImages);
  write_file(folder / "labels", "\0\0\x08\x01\0\0\0\x03\x07\x03\x01"s);
  EXPECT_CONTAINS(idx_error(folder / "images"), "labels' has 3 labels, but '");
  EXPECT_CONTAINS(idx_error(folder / "images"), "images' has 2 images");
  write_file(folder / "labels", kImages);
  EXPECT_CONTAINS(idx_error(folder / "images"), "labels' holds no labels");
  write_file(folder / "labels", kLabels.substr(0, 9));
  EXPECT_CONTAINS(idx_error(folder / "images"), "labels' is truncated");
}

// The counts are the data set's own: 60,000 images, 6,000 of each of ten classes, mean grey 0.2860.
TEST(ReadIdx, ReadsFashionMnist) {
  const fs::path folder = "/usr/share/datasets/fashion-mnist";
  if (!fs::exists(folder)) GTEST_SKIP() << "the package dataset-fashion-mnist is not installed";
  const ImageSet set = read_idx(folder);
  EXPECT_EQ(set.count, 60'000);
  EXPECT_EQ(set.image_bytes(), 28 * 28);
  for (int label = 0; label < 10; ++label) {
    EXPECT_EQ(std::count(set.labels.begin(), set.labels.end(), label), 6'000);
  }
  const double sum = std::accumulate(set.pixels.begin(), set.pixels.end(), 0.0);
  EXPECT_NEAR(sum / static_cast<double>(set.pixels.size()) / 255, 0.2860, 5e-5);
  EXPECT_CONTAINS(set.summary, "ignored: t10k-images-idx3-ubyte.gz");
}

}  // namespace
}  // namespace difuse::runtime
