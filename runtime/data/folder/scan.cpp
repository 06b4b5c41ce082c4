#include "runtime/data/folder/scan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "ir/error.h"
#include "runtime/data/image/decode.h"

namespace difuse::runtime {

namespace fs = std::filesystem;

namespace {

/// The first bytes of a file, fewer where it is shorter or cannot be read.
std::vector<std::byte> read_head(const fs::path& path) {
  std::vector<std::byte> head(256);
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(head.data()), static_cast<std::streamsize>(head.size()));
  head.resize(static_cast<std::size_t>(file.gcount()));
  return head;
}

class Walker {
 public:
  explicit Walker(const fs::path& root) : root_(root) {}

  Scan run() {
    struct stat info {};
    if (::stat(root_.c_str(), &info) != 0) {
      const bool missing = errno == ENOENT || errno == ENOTDIR;
      throw Error(missing ? fmt::format("'{}' does not exist", root_.string())
                          : fmt::format("cannot read '{}': {}", root_.string(), std::strerror(errno)),
                  "check the path", ExitCode::wrong_usage);
    }
    if (!S_ISDIR(info.st_mode)) {
      throw Error(fmt::format("'{}' is not a folder", root_.string()), "give a folder of images",
                  ExitCode::wrong_usage);
    }
    walk({}, identity(info));
    // Links last: a folder that also has a real place below the root keeps that name.
    while (!links_.empty()) {
      const Link link = *links_.begin();
      links_.erase(links_.begin());
      if (visited_.contains(link.folder)) {
        ++scan_.repeated;
      } else {
        walk(link.name, link.folder);
      }
    }
    std::sort(scan_.files.begin(), scan_.files.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    std::sort(scan_.bad.begin(), scan_.bad.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    scan_.empty = !any_;
    return std::move(scan_);
  }

 private:
  using Identity = std::pair<dev_t, ino_t>;
  struct Link {
    std::string name;
    Identity folder;
    bool operator<(const Link& other) const { return name < other.name; }
  };

  static Identity identity(const struct stat& info) { return {info.st_dev, info.st_ino}; }

  /// Reads the folder `name` and all real folders below it; a stack of its own, for depth costs nothing then.
  void walk(const std::string& start, Identity start_identity) {
    visited_.insert(start_identity);
    std::vector<std::string> open = {start};
    while (!open.empty()) {
      const std::string name = std::move(open.back());
      open.pop_back();
      read_folder(name, open);
    }
  }

  void read_folder(const std::string& name, std::vector<std::string>& open) {
    std::error_code error;
    fs::directory_iterator it(name.empty() ? root_ : root_ / name, error);
    ++scan_.folders;
    for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
      const std::string leaf = it->path().filename().string();
      visit(name.empty() ? leaf : name + '/' + leaf, it->path(), open);
    }
    if (!error) return;
    if (name.empty()) {
      throw Error(fmt::format("cannot read the folder '{}': {}", root_.string(), error.message()),
                  "check its permissions", ExitCode::wrong_usage);
    }
    any_ = true;
    scan_.bad.push_back({name, fmt::format("is a folder that cannot be read: {}", error.message())});
  }

  void visit(const std::string& name, const fs::path& path, std::vector<std::string>& open) {
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0) return;  // Removed meanwhile.
    const bool link = S_ISLNK(info.st_mode);
    if (path.filename().native().starts_with('.')) {
      any_ = true;
      ++scan_.hidden;
      return;
    }
    if (link && ::stat(path.c_str(), &info) != 0) {
      any_ = true;
      if (has_image_name(path)) {
        const bool loop = errno == ELOOP;
        scan_.bad.push_back({name, loop ? "is a link that leads to itself" : "is a link to nothing"});
      } else {
        ++scan_.ignored["a link to nothing"];
      }
      return;
    }
    if (S_ISDIR(info.st_mode)) {
      if (link) {
        links_.insert({name, identity(info)});
      } else if (visited_.insert(identity(info)).second) {
        open.push_back(name);
      } else {
        ++scan_.repeated;  // Reached through a link to a folder above it.
      }
      return;
    }
    any_ = true;
    if (!S_ISREG(info.st_mode)) {
      ++scan_.ignored["a device or a pipe"];
      return;
    }
    if (!has_image_name(path)) {
      const std::vector<std::byte> head = read_head(path);
      if (!format_of(head)) {
        ++scan_.ignored[head.empty() ? "an empty file" : describe_foreign(head)];
        return;
      }
    }
    constexpr std::int64_t kNanoseconds = 1'000'000'000;
    scan_.files.push_back(
        {name, static_cast<std::uint64_t>(info.st_size), info.st_mtim.tv_sec * kNanoseconds + info.st_mtim.tv_nsec});
  }

  fs::path root_;
  Scan scan_;
  std::set<Identity> visited_;
  std::set<Link> links_;
  bool any_ = false;
};

}  // namespace

Scan scan_folder(const fs::path& folder) { return Walker(folder).run(); }

std::string describe_ignored(const Scan& scan) {
  std::vector<std::string> parts;
  if (scan.hidden > 0) parts.push_back(fmt::format("{} hidden", scan.hidden));
  for (const auto& [what, count] : scan.ignored) parts.push_back(fmt::format("{} x {}", count, what));
  if (scan.repeated > 0) parts.push_back(fmt::format("{} x a link to a folder that is read anyway", scan.repeated));
  return parts.empty() ? std::string() : fmt::format("ignored: {}", fmt::join(parts, ", "));
}

bool has_image_name(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  constexpr std::array<std::string_view, 7> kEndings = {".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".apng"};
  return std::find(kEndings.begin(), kEndings.end(), ending) != kEndings.end();
}

std::string class_of(const std::string& name) {
  const std::size_t slash = name.find('/');
  return slash == std::string::npos ? std::string() : name.substr(0, slash);
}

std::vector<std::string> class_folders(const fs::path& folder, const std::vector<ImageFile>& files) {
  std::set<std::string> names;
  for (const ImageFile& file : files) {
    std::string name = class_of(file.name);
    if (name.empty()) {
      throw Error(fmt::format("'{}' lies in no class folder, and --class-from-folder takes an image's class from the "
                              "folder of the first level below '{}'",
                              (folder / file.name).string(), folder.string()),
                  "move it into its class's folder, give the folder above as --data, or train without classes",
                  ExitCode::wrong_usage);
    }
    names.insert(std::move(name));
  }
  return {names.begin(), names.end()};
}

}  // namespace difuse::runtime
