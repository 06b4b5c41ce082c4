#include "tests/cli/tiny_data.h"

#include <fmt/format.h>

#include <algorithm>

#include "tests/support/images/encoders.h"

namespace difuse::test {

namespace fs = std::filesystem;

namespace {

/// Image i at (x, y).
int blob(int i, int height, int width, int x, int y) {
  const int dx = x - 1 - i % (width - 2), dy = y - 1 - i / 3 % (height - 2);
  return std::max(0, 255 - 60 * (dx * dx + dy * dy));
}

std::string idx_header(char rank, std::initializer_list<uint32_t> sizes) {
  std::string header = {0, 0, 8, rank};
  for (const uint32_t size : sizes) {
    for (const int shift : {24, 16, 8, 0}) header.push_back(static_cast<char>(size >> shift));
  }
  return header;
}

}  // namespace

void write_idx(const fs::path& path, int count, int height, int width) {
  std::string file =
      idx_header(3, {static_cast<uint32_t>(count), static_cast<uint32_t>(height), static_cast<uint32_t>(width)});
  for (int i = 0; i < count; ++i) {
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) file.push_back(static_cast<char>(blob(i, height, width, x, y)));
    }
  }
  write_file(path, file);
}

void write_idx_labels(const fs::path& path, std::span<const uint8_t> labels) {
  write_file(path, idx_header(1, {static_cast<uint32_t>(labels.size())}) + std::string(labels.begin(), labels.end()));
}

void write_images(const fs::path& folder, int count, int height, int width) {
  fs::create_directories(folder);
  for (int i = 0; i < count; ++i) {
    const SampleAt sample = [&](int x, int y, int) { return blob(i, height, width, x, y); };
    if (i % 3 == 0) {
      write_file(folder / fmt::format("{:03}.jpg", i), encode_jpeg({width, height, 1}, sample));
    } else {
      write_file(folder / fmt::format("{:03}.png", i), encode_png({.width = width, .height = height}, sample));
    }
  }
}

Words train_words(const fs::path& data, const fs::path& out, const Words& more) {
  Words words = {"train",  "--data", data.string(), "--out", out.string(),     "--model", "tiny",        "--batch", "8",
                 "--seed", "7",      "--threads",   "2",     "--sample-every", "0",       "--log-every", "5"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Words without(Words words, const std::string& flag) {
  const auto at = std::ranges::find(words, flag);
  if (at != words.end()) words.erase(at, at + 2);
  return words;
}

}  // namespace difuse::test
