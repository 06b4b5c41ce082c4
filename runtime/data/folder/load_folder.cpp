#include "runtime/data/folder/load_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "ir/error.h"
#include "runtime/data/folder/cache.h"
#include "runtime/data/folder/fitted_file.h"
#include "runtime/data/folder/ordered_pool.h"
#include "runtime/data/folder/scan.h"

namespace difuse::runtime {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSizeRemedy = "give --image-size to bring all to one size, such as --image-size 64";
constexpr const char* kFolderRemedy = "give a folder that holds PNG, JPEG or WebP files at any depth, or an IDX file";

/// A list of at most 20 lines, with how many more there are.
std::string list_bad(std::span<const BadFile> bad) {
  constexpr std::size_t kShown = 20;
  std::string text;
  for (const BadFile& file : bad.first(std::min(bad.size(), kShown))) {
    text += fmt::format("\n  {} {}", file.name, file.fault);
  }
  if (bad.size() > kShown) text += fmt::format("\n  and {} more", bad.size() - kShown);
  return text;
}

/// Where decoded images go: the cache file, or memory.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void append(std::span<const std::uint8_t> image) = 0;
};

class MemorySink final : public Sink {
 public:
  explicit MemorySink(std::uint64_t bytes) { pixels_.reserve(bytes); }
  void append(std::span<const std::uint8_t> image) override {
    pixels_.insert(pixels_.end(), image.begin(), image.end());
  }
  std::vector<std::uint8_t> take() { return std::move(pixels_); }

 private:
  std::vector<std::uint8_t> pixels_;
};

/// For looking only.
class NoSink final : public Sink {
 public:
  void append(std::span<const std::uint8_t>) override {}
};

/// The cache could not be written; the decoding has to start again, into memory.
class CacheLost : public Error {
 public:
  using Error::Error;
};

class CacheSink final : public Sink {
 public:
  CacheSink(const fs::path& path, std::uint64_t images, std::uint64_t image_bytes) {
    guard([&] { writer_ = std::make_unique<CacheWriter>(path, images, image_bytes); });
  }
  void append(std::span<const std::uint8_t> image) override {
    guard([&] { writer_->append(image); });
  }
  void finish(const CacheId& id, const Findings& findings) {
    guard([&] { writer_->finish(id, findings); });
  }

 private:
  template <typename Action>
  static void guard(Action&& action) {
    try {
      action();
    } catch (const Error& error) {
      throw CacheLost(error.what(), error.remedy());
    }
  }

  std::unique_ptr<CacheWriter> writer_;
};

class FolderLoader {
 public:
  FolderLoader(fs::path folder, const LoadSettings& settings, const LoadReport& report)
      : folder_(std::move(folder)), settings_(settings), report_(report) {
    if (settings_.channels == 0) settings_.channels = 3;
    if (settings_.threads < 1) settings_.threads = std::max(1u, std::thread::hardware_concurrency());
  }

  ImageSet run() {
    scan_ = scan_folder(folder_);
    if (scan_.empty) {
      throw Error(fmt::format("the folder '{}' is empty", folder_.string()), kFolderRemedy, ExitCode::wrong_usage);
    }
    say(fmt::format("{}: {} image file{} in {} folder{}", folder_.string(), scan_.files.size(),
                    scan_.files.size() == 1 ? "" : "s", scan_.folders, scan_.folders == 1 ? "" : "s"));
    if (const std::string ignored = describe_ignored(scan_); !ignored.empty()) say("  " + ignored);
    if (settings_.class_from_folder) classes_ = class_folders(folder_, scan_.files);

    ImageSet set;
    if (!scan_.files.empty()) set = read_all();
    std::vector<BadFile> bad = scan_.bad;
    for (const auto& [index, fault] : findings_.bad) bad.push_back({scan_.files[index].name, fault});
    std::sort(bad.begin(), bad.end(), [](const BadFile& a, const BadFile& b) { return a.name < b.name; });
    if (findings_.count == 0) no_usable_image(bad);
    say_findings(bad.size());
    if (!bad.empty()) handle(bad);

    set.count = findings_.count;
    set.height = findings_.height;
    set.width = findings_.width;
    set.channels = findings_.channels;
    const bool one_size = findings_.resized == 0 || has_target();
    const std::string size = one_size ? fmt::format("{}x{}x{}", set.height, set.width, set.channels) : "several sizes";
    set.summary = fmt::format("{} images of {} from {}", set.count, size, folder_.string());
    if (!bad.empty()) set.summary += fmt::format(", {} bad files skipped", bad.size());
    if (settings_.class_from_folder) add_labels(set);
    set.summary += set.labels.empty() ? ", no labels" : fmt::format(", {} classes", classes_.size());
    return set;
  }

 private:
  void say(std::string_view line) const {
    if (report_.say) report_.say(line);
  }
  void warn(std::string_view line) const {
    if (report_.warn) report_.warn(line);
  }

  [[noreturn]] void no_usable_image(const std::vector<BadFile>& bad) const {
    const std::string ignored = describe_ignored(scan_);
    const std::string found =
        bad.empty() ? ignored : fmt::format("all {} image files are bad:{}", bad.size(), list_bad(bad));
    throw Error(fmt::format("the folder '{}' holds no usable image: {}", folder_.string(), found), kFolderRemedy,
                ExitCode::wrong_usage);
  }

  void handle(const std::vector<BadFile>& bad) const {
    const std::string message = fmt::format("{} of {} image files in '{}' cannot be used:{}", bad.size(),
                                            findings_.count + bad.size(), folder_.string(), list_bad(bad));
    if (settings_.on_bad_image == OnBadImage::error) {
      throw Error(message, fmt::format("remove or replace them{}", settings_.can_change
                                                                       ? ", or give --on-bad-image skip to go on "
                                                                         "without them"
                                                                       : ""));
    }
    warn(message);
  }

  /// Fills findings_ and gives the pixels, from the cache or by decoding.
  ImageSet read_all() {
    if (settings_.cache_folder.empty()) return settings_.look_only ? look() : decode_into_memory();
    const CacheId id = cache_id();
    const fs::path path = cache_path(settings_.cache_folder, canonical(), id);
    std::string why_not;
    if (std::optional<CachedImages> cached = open_cache(path, id, why_not)) {
      say(fmt::format("  decoded before: {}", path.string()));
      return from_cache(std::move(*cached));
    }
    if (settings_.look_only) return look();
    if (!why_not.empty()) say(fmt::format("  the cache '{}' {}; it is made again", path.string(), why_not));
    try {
      if (decode_into_cache(path, id)) {
        if (std::optional<CachedImages> cached = open_cache(path, id, why_not)) {
          say(fmt::format("  decoded into {}", path.string()));
          return from_cache(std::move(*cached));
        }
        throw CacheLost(fmt::format("'{}' cannot be read back", path.string()));
      }
      return {};
    } catch (const CacheLost& lost) {
      warn(fmt::format("the decoded images stay in memory only, without a cache: {}", lost.what()));
    }
    return decode_into_memory();
  }

  ImageSet from_cache(CachedImages cached) {
    findings_ = std::move(cached.findings);
    ImageSet set;
    set.pixels = cached.pixels;
    set.owner = std::make_shared<const MappedFile>(std::move(cached.file));
    return set;
  }

  ImageSet look() {
    NoSink nowhere;
    if (settle_size()) decode_into(nowhere);
    return {};
  }

  ImageSet decode_into_memory() {
    if (!settle_size()) return {};
    ImageSet set;
    try {
      MemorySink sink(scan_.files.size() * image_bytes());
      decode_into(sink);
      set.own(sink.take());
    } catch (const std::bad_alloc&) {
      throw Error(fmt::format("{} images of {} bytes do not fit into memory", scan_.files.size(), image_bytes()),
                  settings_.can_change ? "give --data-cache a folder on a disk with room, or a smaller --image-size"
                                       : "give fewer images");
    }
    return set;
  }

  /// False when there is no image to write.
  bool decode_into_cache(const fs::path& path, const CacheId& id) {
    if (!settle_size()) return false;
    CacheSink sink(path, scan_.files.size(), image_bytes());
    decode_into(sink);
    if (findings_.count > 0) sink.finish(id, findings_);
    return findings_.count > 0;
  }

  std::uint64_t image_bytes() const { return std::uint64_t(size_.height) * size_.width * settings_.channels; }

  /// The size that was asked for, or that of the first good image. False when there is neither.
  bool settle_size() {
    size_ = settings_.size;
    findings_ = {};
    for (std::int64_t i = 0; size_.height == 0 && i < std::ssize(scan_.files); ++i) {
      FittedFile first = read(i);
      if (first.fault) {
        findings_.bad[i] = *first.fault;
        continue;
      }
      size_ = first.stored;
      first_ = i;
    }
    return size_.height > 0;
  }

  FittedFile read(std::int64_t i) const { return read_fitted(folder_ / scan_.files[i].name, settings_); }

  void decode_into(Sink& sink) {
    findings_ = {};
    findings_.height = size_.height;
    findings_.width = size_.width;
    findings_.channels = settings_.channels;
    constexpr std::int64_t kAheadPerThread = 16;
    const auto total = static_cast<std::int64_t>(scan_.files.size());
    const int threads = static_cast<int>(std::min<std::int64_t>(settings_.threads, total));
    run_in_order<FittedFile>(
        total, threads, threads * kAheadPerThread, [this](std::int64_t i) { return read(i); },
        [&](std::int64_t i, FittedFile file) {
          take(i, file, sink);
          if (report_.progress) report_.progress(i + 1, total);
        });
  }

  void take(std::int64_t i, FittedFile& file, Sink& sink) {
    if (file.fault) {
      findings_.bad[i] = std::move(*file.fault);
      return;
    }
    const ImageSize stored = file.stored;
    if (!has_target() && !settings_.look_only && stored != size_) {
      throw Error(fmt::format("the images have several sizes: '{}' is {}, '{}' is {} (height x width)",
                              scan_.files[first_].name, describe(size_), scan_.files[i].name, describe(stored)),
                  kSizeRemedy, ExitCode::wrong_usage);
    }
    if (findings_.count++ == 0) {
      findings_.least_height = findings_.most_height = stored.height;
      findings_.least_width = findings_.most_width = stored.width;
    }
    findings_.least_height = std::min(findings_.least_height, stored.height);
    findings_.most_height = std::max(findings_.most_height, stored.height);
    findings_.least_width = std::min(findings_.least_width, stored.width);
    findings_.most_width = std::max(findings_.most_width, stored.width);
    if (stored != size_) ++findings_.resized;
    ++findings_.kinds[file.kind];
    sink.append(file.image.pixels);
  }

  bool has_target() const { return settings_.size.height > 0; }

  fs::path canonical() const {
    std::error_code ignored;
    fs::path path = fs::canonical(folder_, ignored);
    return path.empty() ? folder_ : path;
  }

  CacheId cache_id() const {
    // Raise it when the same files come to other pixels.
    constexpr std::uint64_t kDecoderVersion = 1;
    Fingerprint print;
    print.add(kDecoderVersion).add(canonical().native());
    print.add(std::uint64_t(settings_.size.height)).add(std::uint64_t(settings_.size.width));
    print.add(std::uint64_t(settings_.channels)).add(std::uint64_t(settings_.crop));
    print.add(settings_.limits.max_pixels).add(settings_.limits.max_file_bytes);
    CacheId id;
    id.name = print.hex();
    for (const ImageFile& file : scan_.files) {
      print.add(file.name).add(file.bytes).add(static_cast<std::uint64_t>(file.modified_ns));
    }
    id.content = print.hex();
    return id;
  }

  void say_findings(std::size_t bad) const {
    std::vector<std::pair<std::string, std::string>> rows;
    std::vector<std::int64_t> counts;
    std::size_t width = 4;
    for (const auto& [kind, count] : findings_.kinds) {
      rows.emplace_back(describe(kind), describe_treatment(kind, settings_.channels));
      counts.push_back(count);
      width = std::max(width, rows.back().first.size());
    }
    say(fmt::format("  {:<{}}  {:>8}  what is done", "kind", width, "images"));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      say(fmt::format("  {:<{}}  {:>8}  {}", rows[i].first, width, counts[i], rows[i].second));
    }
    if (bad > 0) say(fmt::format("  {:<{}}  {:>8}  not used", "bad", width, bad));
    const ImageSize least{findings_.least_height, findings_.least_width};
    const ImageSize most{findings_.most_height, findings_.most_width};
    const std::string sizes =
        least == most ? describe(least) : fmt::format("{} to {}", describe(least), describe(most));
    const ImageSize target{findings_.height, findings_.width};
    if (findings_.resized == 0) {
      say(fmt::format("  size {} (height x width), as it is", sizes));
    } else if (!has_target()) {
      say(fmt::format("  sizes {} (height x width)", sizes));
    } else {
      say(fmt::format("  sizes {} (height x width), {} of {} brought to {}: {}", sizes, findings_.resized,
                      findings_.count, describe(target),
                      settings_.crop == Crop::center ? "resized to cover it, then cut around the centre"
                                                     : "squeezed to it, nothing cut"));
    }
  }

  void add_labels(ImageSet& set) const {
    std::map<std::string, std::int32_t> number;
    for (const std::string& name : classes_) number.emplace(name, static_cast<std::int32_t>(number.size()));
    for (std::int64_t i = 0; i < std::ssize(scan_.files); ++i) {
      if (!findings_.bad.contains(i)) set.labels.push_back(number.at(class_of(scan_.files[i].name)));
    }
    set.class_names = classes_;
    std::vector<std::int64_t> counts = class_counts(set);
    counts.resize(classes_.size());
    say(fmt::format("  {} classes from folder names:", classes_.size()));
    constexpr std::size_t kShown = 50;
    for (std::size_t i = 0; i < std::min(kShown, classes_.size()); ++i) {
      say(fmt::format("  class {:>4}  {:>8} images  {}", i, counts[i], classes_[i]));
    }
    const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
    if (classes_.size() > kShown) {
      say(fmt::format("  and {} more classes; all have {} to {} images", classes_.size() - kShown, *least, *most));
    }
    if (*least == 0) {
      throw Error(fmt::format("class '{}' has no usable image: all files in '{}' are bad",
                              classes_[least - counts.begin()], (folder_ / classes_[least - counts.begin()]).string()),
                  "replace the files, or remove the folder");
    }
  }

  fs::path folder_;
  LoadSettings settings_;
  const LoadReport& report_;
  Scan scan_;
  std::vector<std::string> classes_;
  ImageSize size_;
  std::int64_t first_ = 0;  // The image that gave size_.
  Findings findings_;
};

}  // namespace

ImageSet load_folder(const fs::path& folder, const LoadSettings& settings, const LoadReport& report) {
  return FolderLoader(folder, settings, report).run();
}

}  // namespace difuse::runtime
