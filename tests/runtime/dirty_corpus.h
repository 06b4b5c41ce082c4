// A folder as users have it: every kind of image, and everything that only looks like one, each with what must become
// of it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/png.h"

namespace difuse::test {

enum class Fate {
  used,     ///< Decoded to `expected`, within `tolerance`, and described as `says`.
  bad,      ///< Named, with a fault that contains `says`.
  ignored,  ///< No image and not named as one.
};

struct DirtyFile {
  std::string name;  ///< Relative; folders in it are made.
  std::string contents;
  Fate fate = Fate::used;
  std::string says;
  runtime::Image expected;
  int tolerance = 0;
};

/// Files that can be made from their contents alone.
const std::vector<DirtyFile>& dirty_files();

/// Writes dirty_files() below `folder`, and what is no plain file: a folder named x.png, a link to an image (used), a
/// link to nothing and one to itself named as images (bad), a link that loops back to `folder`, hidden files, a pipe.
void write_dirty_folder(const std::filesystem::path& folder);

/// What write_dirty_folder() adds to the counts of dirty_files().
inline constexpr int kLinksUsed = 1;
inline constexpr int kLinksBad = 2;

}  // namespace difuse::test
