// Small data sets and runs for tests of the real binary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "tests/cli/process.h"
#include "tests/support/temp_folder.h"

namespace difuse::test {

/// Writes `count` grey images as an IDX file: soft blobs whose place depends on the image's number.
void write_idx(const std::filesystem::path& path, int count, int height = 8, int width = 8);
/// Writes labels as an IDX file.
void write_idx_labels(const std::filesystem::path& path, std::span<const uint8_t> labels);

/// Writes the same blobs as image files into `folder`, which is made: every third a JPEG, the others PNG.
void write_images(const std::filesystem::path& folder, int count, int height = 8, int width = 8);

/// `difuse train` of `tiny` on 8x8 images, with more flags.
Words train_words(const std::filesystem::path& data, const std::filesystem::path& out, const Words& more);

/// The words without `flag` and its value.
Words without(Words words, const std::string& flag);

}  // namespace difuse::test
