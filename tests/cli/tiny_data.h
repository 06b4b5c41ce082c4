// Small data sets and runs for tests of the real binary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "tests/cli/process.h"
#include "tests/support/temp_folder.h"

namespace difuse::test {

/// Writes `count` grey images as an IDX file: soft blobs whose place depends on the image's number.
inline void write_idx(const std::filesystem::path& path, int count, int height = 8, int width = 8) {
  std::string file = {0, 0, 8, 3};
  for (const uint32_t size :
       {static_cast<uint32_t>(count), static_cast<uint32_t>(height), static_cast<uint32_t>(width)}) {
    for (const int shift : {24, 16, 8, 0}) file.push_back(static_cast<char>(size >> shift));
  }
  for (int i = 0; i < count; ++i) {
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        const int dx = x - 1 - i % (width - 2), dy = y - 1 - i / 3 % (height - 2);
        const int value = 255 - 60 * (dx * dx + dy * dy);
        file.push_back(static_cast<char>(value < 0 ? 0 : value));
      }
    }
  }
  write_file(path, file);
}

/// `difuse train` of `tiny` on 8x8 images, with more flags.
inline Words train_words(const std::filesystem::path& data, const std::filesystem::path& out, const Words& more) {
  Words words = {"train",  "--data", data.string(), "--out", out.string(),     "--model", "tiny",        "--batch", "8",
                 "--seed", "7",      "--threads",   "2",     "--sample-every", "0",       "--log-every", "5"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace difuse::test
