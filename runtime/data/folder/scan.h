// Which files of a folder are images, before any is decoded.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace difuse::runtime {

struct ImageFile {
  std::string name;  ///< Relative to the folder, with '/'.
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;
};

/// A file that should be an image and cannot be used.
struct BadFile {
  std::string name;
  std::string fault;  ///< The rest of a sentence whose subject is the file: "is a truncated PNG".
};

struct Scan {
  std::vector<ImageFile> files;                 ///< By name, in byte order.
  std::vector<BadFile> bad;                     ///< Links to nothing and unreadable folders, by name.
  std::int64_t folders = 0;                     ///< That were read, with the first.
  std::int64_t hidden = 0;                      ///< Files and folders whose names begin with a dot.
  std::int64_t repeated = 0;                    ///< Folders reached again through a link; each is read once.
  std::map<std::string, std::int64_t> ignored;  ///< What else there is ("a text file"), with counts.
  bool empty = false;                           ///< There is nothing but empty folders at any depth.
};

/// Walks `folder` at any depth. A file counts as an image by its name's ending (.png .jpg .jpeg .jpe .jfif .webp .apng,
/// in any case) or, with another name, by its content. Links are followed; a folder is entered once, by its real place
/// where it has one below `folder`, so loops end. Errors: it is missing, is no folder, or cannot be read.
Scan scan_folder(const std::filesystem::path& folder);

/// "ignored: 2 hidden, 3 x a text file", or empty when nothing is.
std::string describe_ignored(const Scan& scan);

/// Whether a name ends like that of an image.
bool has_image_name(const std::filesystem::path& path);

/// The names of the folders of the first level that hold images, in byte order: the classes. Error when an image lies
/// in no such folder.
std::vector<std::string> class_folders(const std::filesystem::path& folder, const std::vector<ImageFile>& files);

/// The first-level folder of a name, or empty.
std::string class_of(const std::string& name);

}  // namespace difuse::runtime
