#include "runtime/data/idx.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "ir/error.h"
#include "runtime/data/folder/scan.h"
#include "runtime/data/gzip_reader.h"

namespace difuse::runtime {

namespace fs = std::filesystem;

namespace {

constexpr int kImageRank = 3;
constexpr int kLabelRank = 1;
constexpr int kUnsignedByte = 0x08;

const std::string kIdxRemedy = "give an IDX file such as train-images-idx3-ubyte.gz, or the folder that holds it";
const std::string kCopyAgain = "copy or download the file again";

[[noreturn]] void no_images(const fs::path& path, std::string_view what) {
  throw Error(fmt::format("'{}' holds no image: {}", path.string(), what), kIdxRemedy);
}

struct Magic {
  int type = 0;
  int rank = 0;
};

/// The first four bytes, or nothing when they are not IDX.
std::optional<Magic> read_magic(GzipReader& reader) {
  std::array<std::byte, 4> magic{};
  if (reader.read(magic) != magic.size()) return std::nullopt;
  if (magic[0] != std::byte{0} || magic[1] != std::byte{0}) return std::nullopt;
  constexpr std::array kTypes = {0x08, 0x09, 0x0b, 0x0c, 0x0d, 0x0e};
  const Magic result{std::to_integer<int>(magic[2]), std::to_integer<int>(magic[3])};
  if (std::find(kTypes.begin(), kTypes.end(), result.type) == kTypes.end() || result.rank < 1) return std::nullopt;
  return result;
}

/// The unsigned bytes behind a header of `sizes.size()` sizes, which it fills.
std::vector<std::uint8_t> read_elements(const fs::path& path, GzipReader& reader, std::span<std::uint32_t> sizes) {
  std::uint64_t expected = 1;
  bool overflow = false;
  for (std::uint32_t& size : sizes) {
    std::array<std::byte, 4> bytes{};
    if (reader.read(bytes) != bytes.size()) {
      throw Error(fmt::format("'{}' is truncated: it ends inside its header", path.string()), kCopyAgain);
    }
    size = 0;
    for (const std::byte byte : bytes) size = size << 8 | std::to_integer<std::uint32_t>(byte);
    overflow |= __builtin_mul_overflow(expected, std::uint64_t{size}, &expected);
  }
  const std::string claim = fmt::format("its header says {}", fmt::join(sizes, " x "));
  const auto too_short = [&](std::string_view found) {
    throw Error(fmt::format("'{}' is truncated: {}, but it has only {} bytes of data", path.string(), claim, found),
                kCopyAgain);
  };
  if (overflow || expected > reader.most_bytes()) {
    const std::uint64_t header = 4 + 4 * sizes.size();
    too_short(reader.compressed() ? fmt::format("at most {}", reader.most_bytes())
                                  : std::to_string(reader.most_bytes() - header));
  }
  std::vector<std::uint8_t> elements(expected);
  const std::size_t found = reader.read(std::as_writable_bytes(std::span(elements)));
  if (found != expected) too_short(std::to_string(found));
  // Asking for one more byte also makes gzip check its sum.
  std::array<std::byte, 1> extra{};
  if (reader.read(extra) != 0) {
    throw Error(fmt::format("'{}' contradicts itself: {}, but more data follows", path.string(), claim), kCopyAgain);
  }
  return elements;
}

ImageSet read_images(const fs::path& path) {
  GzipReader reader(path);
  const std::optional<Magic> magic = read_magic(reader);
  if (!magic) no_images(path, reader.most_bytes() == 0 ? "it is empty" : "it is not an IDX file (wrong magic number)");
  if (magic->type != kUnsignedByte) {
    no_images(path, fmt::format("its IDX element type is 0x{:02x}, not unsigned byte (0x08)", magic->type));
  }
  if (magic->rank == kLabelRank) no_images(path, "it is an IDX file of labels");
  if (magic->rank != kImageRank) {
    no_images(path, fmt::format("its IDX rank is {}, not 3 (count, height, width)", magic->rank));
  }
  std::array<std::uint32_t, kImageRank> sizes{};
  ImageSet set;
  set.own(read_elements(path, reader, sizes));
  if (set.pixels.empty()) no_images(path, fmt::format("its header says {}", fmt::join(sizes, " x ")));
  constexpr std::uint32_t kMaxSide = 1 << 20;
  if (sizes[1] > kMaxSide || sizes[2] > kMaxSide) {
    no_images(path, fmt::format("images of {} x {} pixels are not images", sizes[1], sizes[2]));
  }
  set.count = sizes[0];
  set.height = static_cast<int>(sizes[1]);
  set.width = static_cast<int>(sizes[2]);
  set.channels = 1;
  return set;
}

std::vector<std::int32_t> read_labels(const fs::path& path, const fs::path& images, std::int64_t count) {
  GzipReader reader(path);
  const std::optional<Magic> magic = read_magic(reader);
  if (!magic || magic->type != kUnsignedByte || magic->rank != kLabelRank) {
    throw Error(fmt::format("'{}' holds no labels, although it lies beside '{}'", path.string(), images.string()),
                "remove or rename it to train without labels, or replace it by the right file");
  }
  std::array<std::uint32_t, kLabelRank> sizes{};
  const std::vector<std::uint8_t> elements = read_elements(path, reader, sizes);
  if (sizes[0] != count) {
    throw Error(
        fmt::format("'{}' has {} labels, but '{}' has {} images", path.string(), sizes[0], images.string(), count),
        "use image and label files that belong together");
  }
  return {elements.begin(), elements.end()};
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

std::string without_gz(std::string name) {
  if (lower(name).ends_with(".gz")) name.resize(name.size() - 3);
  return name;
}

/// The label file beside an image file, or an empty path.
fs::path labels_beside(const fs::path& images) {
  std::string name = without_gz(images.filename().string());
  const auto replace_last = [&](std::string_view from, std::string_view to) {
    const std::size_t at = name.rfind(from);
    if (at != std::string::npos) name.replace(at, from.size(), to);
    return at != std::string::npos;
  };
  if (!replace_last("images", "labels")) return {};
  replace_last("idx3", "idx1");
  for (const char* ending : {"", ".gz", ".GZ"}) {
    const fs::path candidate = images.parent_path() / (name + ending);
    std::error_code ignored;
    if (fs::is_regular_file(candidate, ignored)) return candidate;
  }
  return {};
}

bool is_test_set(const fs::path& path) {
  const std::string name = lower(path.filename().string());
  if (name.find("t10k") != std::string::npos) return true;
  const std::size_t at = name.find("test");  // "test-images", "my_test", but not "latest".
  return at != std::string::npos && (at == 0 || !std::isalnum(static_cast<unsigned char>(name[at - 1])));
}

bool holds_images(const fs::path& path) {
  try {
    GzipReader reader(path);
    const std::optional<Magic> magic = read_magic(reader);
    return magic && magic->type == kUnsignedByte && magic->rank == kImageRank;
  } catch (const Error&) {
    // Damaged or unreadable. If its name says that it is the training set, reading it will say what is wrong with it.
    const std::string name = lower(path.filename().string());
    return name.starts_with("train") && name.find("images") != std::string::npos;
  }
}

std::string list_names(std::span<const fs::path> paths) {
  constexpr std::size_t kShown = 5;
  std::vector<std::string> names;
  for (const fs::path& path : paths.first(std::min(paths.size(), kShown))) names.push_back(path.filename().string());
  const std::string more = paths.size() > kShown ? fmt::format(" and {} more", paths.size() - kShown) : std::string();
  return fmt::format("{}{}", fmt::join(names, ", "), more);
}

struct Choice {
  fs::path images;
  std::vector<fs::path> ignored;  ///< Test sets, gzip twins and image files.
};

Choice choose_images(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  bool empty = true;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    empty = false;
    std::error_code ignored;
    if (it->is_regular_file(ignored)) files.push_back(it->path());
  }
  if (error) {
    throw Error(fmt::format("cannot read the folder '{}': {}", folder.string(), error.message()),
                "check its permissions", ExitCode::wrong_usage);
  }
  if (empty) throw Error(fmt::format("the folder '{}' is empty", folder.string()), kIdxRemedy, ExitCode::wrong_usage);
  // Sorting also puts a plain file before its ".gz" twin.
  std::sort(files.begin(), files.end());

  Choice choice;
  std::vector<fs::path> found;
  std::set<std::string> seen;
  for (const fs::path& file : files) {
    if (!holds_images(file)) continue;
    const bool twin = !seen.insert(without_gz(file.filename().string())).second;
    (twin || is_test_set(file) ? choice.ignored : found).push_back(file);
  }
  if (found.size() > 1) {
    const auto is_train = [](const fs::path& f) { return lower(f.filename().string()).starts_with("train"); };
    const auto middle = std::stable_partition(found.begin(), found.end(), is_train);
    if (middle - found.begin() != 1) {
      throw Error(fmt::format("the folder '{}' holds several image files: {}", folder.string(), list_names(found)),
                  "give the path of the one to train on", ExitCode::wrong_usage);
    }
    choice.ignored.insert(choice.ignored.end(), middle, found.end());
    found.erase(middle, found.end());
  }
  if (found.empty()) {
    if (!choice.ignored.empty()) {
      throw Error(fmt::format("the folder '{}' holds only a test set: {}", folder.string(), list_names(choice.ignored)),
                  "add train-images-idx3-ubyte(.gz), or give that file's own path to train on it",
                  ExitCode::wrong_usage);
    }
    const std::string what =
        files.empty() ? "no file" : fmt::format("no IDX file of images, only {}", list_names(files));
    throw Error(fmt::format("the folder '{}' holds {}", folder.string(), what), kIdxRemedy, ExitCode::wrong_usage);
  }
  choice.images = found.front();
  std::ranges::copy_if(files, std::back_inserter(choice.ignored), has_image_name);
  return choice;
}

}  // namespace

bool holds_idx(const fs::path& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (has_image_name(it->path()) || !it->is_regular_file(ignored)) continue;
    if (holds_images(it->path())) return true;
  }
  return false;
}

ImageSet read_idx(const fs::path& path) {
  std::error_code ignored;
  Choice choice;
  choice.images = path;
  if (fs::is_directory(path, ignored)) choice = choose_images(path);

  ImageSet set = read_images(choice.images);
  set.summary = fmt::format("{} images of {}x{}x{} from {}", set.count, set.height, set.width, set.channels,
                            choice.images.filename().string());
  if (const fs::path labels = labels_beside(choice.images); labels.empty()) {
    set.summary += ", no labels";
  } else {
    set.labels = read_labels(labels, choice.images, set.count);
    const std::set<std::int32_t> classes(set.labels.begin(), set.labels.end());
    set.summary += fmt::format(", labels of {} classes from {}", classes.size(), labels.filename().string());
  }
  if (!choice.ignored.empty()) set.summary += fmt::format("; ignored: {}", list_names(choice.ignored));
  return set;
}

}  // namespace difuse::runtime
