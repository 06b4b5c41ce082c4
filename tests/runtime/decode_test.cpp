#include "runtime/data/image/decode.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <set>
#include <string>

#include "runtime/data/image/formats.h"
#include "tests/runtime/dirty_corpus.h"
#include "tests/support/images/encoders.h"
#include "tests/support/temp_folder.h"

namespace difuse::runtime {
namespace {

using namespace difuse::test;
using namespace std::string_literals;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

Decoded decode_good(const std::string& file) {
  Decoded decoded;
  const std::optional<std::string> fault = decode(bytes_of(file), {}, decoded);
  EXPECT_EQ(fault.value_or(""), "");
  return decoded;
}

std::string fault_of(const std::string& file, const DecodeLimits& limits = {}) {
  Decoded decoded;
  return decode(bytes_of(file), limits, decoded).value_or("");
}

int largest_difference(const Image& a, const Image& b) {
  int largest = 0;
  for (std::size_t i = 0; i < a.pixels.size(); ++i) largest = std::max(largest, std::abs(a.pixels[i] - b.pixels[i]));
  return largest;
}

TEST(Decode, HandlesEveryDirtyFileAsDocumented) {
  std::set<std::string> faults;
  for (const DirtyFile& file : dirty_files()) {
    SCOPED_TRACE(file.name);
    Decoded decoded;
    const std::optional<std::string> fault = decode(bytes_of(file.contents), {}, decoded);
    if (file.fate == Fate::used) {
      ASSERT_EQ(fault.value_or(""), "");
      EXPECT_EQ(describe(decoded.kind), file.says);
      ASSERT_EQ(decoded.image.width, file.expected.width);
      ASSERT_EQ(decoded.image.height, file.expected.height);
      ASSERT_EQ(decoded.image.channels, file.expected.channels);
      ASSERT_EQ(decoded.image.pixels.size(), file.expected.pixels.size());
      EXPECT_LE(largest_difference(decoded.image, file.expected), file.tolerance);
      continue;
    }
    ASSERT_TRUE(fault.has_value());
    if (file.fate == Fate::bad) {
      EXPECT_CONTAINS(*fault, file.says);
    }
  }
  EXPECT_GE(dirty_files().size(), 30u);
}

TEST(Decode, ARampOf16BitsKeepsItsLevels) {
  PngSpec spec;
  spec.width = 65536;
  spec.height = 1;
  spec.bits = 16;
  const Image image = decode_good(encode_png(spec, [](int x, int, int) { return x; })).image;
  EXPECT_EQ(std::set(image.pixels.begin(), image.pixels.end()).size(), 256u);
  for (int value = 0; value < 65536; ++value) {
    ASSERT_EQ(image.pixels[value], (value * 255 + 32895) >> 16) << value;
    ASSERT_LE(std::abs(image.pixels[value] * 257 - value), 128) << value;  // To the nearest, and not clipped.
  }
}

TEST(Decode, EveryTruncationIsAFault) {
  for (const DirtyFile& file : dirty_files()) {
    // What follows the end of an image is not missed.
    if (file.fate != Fate::used || file.name == "png/more_behind_the_end.png") continue;
    for (std::size_t size = 16; size < file.contents.size(); ++size) {
      const std::string fault = fault_of(file.contents.substr(0, size));
      ASSERT_TRUE(contains(fault, "is a truncated")) << file.name << " at " << size << ": " << fault;
    }
  }
}

TEST(Decode, EveryFlippedBitOfAPngIsAFault) {
  for (const DirtyFile& file : dirty_files()) {
    if (file.name != "png/rgb.png") continue;
    for (std::size_t bit = 64; bit < 8 * file.contents.size(); ++bit) {
      std::string damaged = file.contents;
      damaged[bit / 8] ^= static_cast<char>(1 << bit % 8);
      ASSERT_NE(fault_of(damaged), "") << "bit " << bit;
    }
  }
}

TEST(Decode, RefusesWhatIsTooLarge) {
  const std::string file = encode_png({.width = 30, .height = 20}, [](int, int, int) { return 0; });
  EXPECT_EQ(fault_of(file, {.max_pixels = 600, .max_file_bytes = 1 << 20}), "");
  EXPECT_CONTAINS(fault_of(file, {.max_pixels = 599, .max_file_bytes = 1 << 20}),
                  "is too large: its header says 30 x 20");
  const TempFolder folder;
  write_file(folder / "a.png", file);
  Decoded decoded;
  EXPECT_CONTAINS(decode_file(folder / "a.png", {.max_pixels = 600, .max_file_bytes = 10}, decoded).value_or(""),
                  "is too large: ");
}

TEST(Decode, NamesFilesThatCannotBeRead) {
  const TempFolder folder;
  Decoded decoded;
  const auto fault = [&](const std::filesystem::path& path) { return decode_file(path, {}, decoded).value_or(""); };
  EXPECT_CONTAINS(fault(folder / "none.png"), "cannot be read: No such file");
  EXPECT_EQ(fault(folder.path()), "is a folder");
  EXPECT_EQ(fault("/dev/null"), "is a device or a pipe");
}

TEST(Decode, KnowsForeignFiles) {
  const auto what = [](const std::string& text) { return describe_foreign(bytes_of(text)); };
  EXPECT_EQ(what(""), "empty");
  EXPECT_EQ(what("\xef\xbb\xbf  <HTML>"), "an HTML page");
  EXPECT_EQ(what("<svg xmlns="), "an SVG drawing");
  EXPECT_EQ(what("\0\0\0\x1c"s + "ftypavif"), "an AVIF image");
  EXPECT_EQ(what("\0\0\0\x1c"s + "ftypheic"), "a HEIF image");
  EXPECT_EQ(what("II*\0"s), "a TIFF image");
  EXPECT_EQ(what("caf\xc3\xa9\n"), "a text file");
  EXPECT_EQ(what("\x01\x02"), "not an image that is known");
}

TEST(Exif, ReadsBothByteOrdersAndBelievesNothing) {
  for (int orientation = 1; orientation <= 8; ++orientation) {
    for (const bool big_endian : {false, true}) {
      const std::string block = exif_block(orientation, big_endian);
      EXPECT_EQ(exif_orientation(bytes_of(block)), orientation);
      EXPECT_EQ(exif_orientation(bytes_of("Exif\0\0"s + block)), orientation);
      for (std::size_t size = 0; size < block.size() - 4; ++size) {
        const int found = exif_orientation(bytes_of(block.substr(0, size)));
        EXPECT_TRUE(found == 1 || found == orientation);
      }
    }
  }
  EXPECT_EQ(exif_orientation(bytes_of(exif_block(9, false))), 1);
  std::string far = exif_block(6, false);
  far.replace(4, 4, "\xff\xff\xff\xff");
  EXPECT_EQ(exif_orientation(bytes_of(far)), 1);
}

TEST(Kind, SaysWhatIsDone) {
  ImageKind kind{ImageFormat::png, Colour::grey_alpha, 16, true, true};
  EXPECT_EQ(describe(kind), "PNG 16-bit grey + alpha, animated, turned");
  EXPECT_EQ(describe_treatment(kind, 3),
            "first frame only, turned upright (EXIF), scaled to 8 bits, alpha over white, grey repeated");
  kind = {ImageFormat::jpeg, Colour::cmyk, 8, false, false};
  EXPECT_EQ(describe_treatment(kind, 1), "CMYK to RGB, to grey (Rec.601 luma)");
  kind = {ImageFormat::webp, Colour::rgb, 8, false, false};
  EXPECT_EQ(describe_treatment(kind, 3), "as it is");
  EXPECT_EQ(describe_treatment(kind, 4), "alpha 255 added");
}

/// Damages files at random: whatever comes, the decoders return.
void fuzz(std::uint32_t seed, int iterations) {
  std::mt19937 random(seed);
  std::vector<const DirtyFile*> good;
  for (const DirtyFile& file : dirty_files()) {
    if (file.fate == Fate::used) good.push_back(&file);
  }
  constexpr DecodeLimits kLimits{.max_pixels = 1 << 16, .max_file_bytes = 1 << 20};
  int decoded_anyway = 0;
  for (int i = 0; i < iterations; ++i) {
    std::string file = good[random() % good.size()]->contents;
    const std::size_t changes = random() % 2 ? 1 : random() % 8;
    for (std::size_t c = 0; c < changes; ++c) {
      // Headers decide most, and are short.
      const std::size_t range = random() % 2 ? file.size() : std::min<std::size_t>(file.size(), 200);
      file[random() % range] = static_cast<char>(random() % 4 ? random() : random() % 2 ? 0xff : 0);
    }
    if (random() % 8 == 0) file.resize(random() % (file.size() + 1));
    if (random() % 8 == 0) file.insert(random() % (file.size() + 1), random() % 64, static_cast<char>(random()));
    if (random() % 4) file = repair_checksums(std::move(file));
    Decoded decoded;
    const std::optional<std::string> fault = decode(bytes_of(file), kLimits, decoded);
    if (fault) {
      EXPECT_FALSE(fault->empty());
    } else {
      ++decoded_anyway;
      const Image& image = decoded.image;
      ASSERT_EQ(image.pixels.size(), static_cast<std::size_t>(image.width) * image.height * image.channels);
      ASSERT_TRUE(image.channels == 1 || image.channels == 3 || image.channels == 4);
    }
  }
  EXPECT_GT(decoded_anyway, 0);
  EXPECT_LT(decoded_anyway, iterations);
}

TEST(Decode, SurvivesDamage) { fuzz(1, 30'000); }

TEST(SlowDecode, SurvivesMuchDamage) {
  for (std::uint32_t seed = 2; seed < 50; ++seed) fuzz(seed, 10'000);
}

}  // namespace
}  // namespace difuse::runtime
