#include "codegen/jit/kernel_cache.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <utility>

#include "codegen/jit/entry_files.h"
#include "codegen/jit/sha256.h"

namespace difuse::codegen {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

/// Raised when an entry's files change meaning, or when a log that passed before would now be refused.
constexpr int kFormat = 1;

constexpr const char* kSourceFile = "kernel.cu";
constexpr const char* kCubinFile = "kernel.cubin";
constexpr const char* kMetaFile = "meta.json";
constexpr const char* kStampFile = "nvrtc.json";
constexpr const char* kTemporaries = "tmp";

std::string dump(const json& object) { return object.dump(2, ' ', false, json::error_handler_t::replace) + "\n"; }

/// Of an object without its "checksum".
std::string checksum(const json& object) { return Sha256().add(dump(object)).hex(); }

/// Adds the checksum, so that no number of the file can change unseen.
std::string sealed(json object) {
  // Through the text and back: bytes that are no UTF-8 are replaced on the way.
  object = json::parse(dump(object));
  object["checksum"] = checksum(object);
  return dump(object);
}

/// The object that `sealed` wrote; nullopt for any other text.
std::optional<json> unsealed(const std::string& text) {
  json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object() || !object.contains("checksum")) return std::nullopt;
  if (dump(object) != text) return std::nullopt;  // Cut short by its last line break, or edited.
  const json found = object["checksum"];
  object.erase("checksum");
  if (found != checksum(object)) return std::nullopt;
  return object;
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string describe(const CudaSource& source, NvrtcVersion version, const std::string& key,
                     const CompiledKernel& kernel) {
  const KernelResources& r = kernel.resources;
  return sealed({{"format", kFormat},
                 {"key", key},
                 {"name", source.name},
                 {"architecture", source.architecture},
                 {"nvrtc", version.text()},
                 {"options", nvrtc_options(source, version)},
                 {"source_bytes", source.source.size()},
                 {"cubin_bytes", kernel.cubin.size()},
                 {"cubin_sha256", Sha256().add(kernel.cubin).hex()},
                 {"resources",
                  {{"registers", r.registers},
                   {"barriers", r.barriers},
                   {"static_shared_bytes", r.static_shared_bytes},
                   {"local_bytes", r.local_bytes},
                   {"constant_bytes", r.constant_bytes}}},
                 {"seconds", kernel.seconds},
                 {"log", kernel.log}});
}

std::string cannot_write(const fs::path& root, int error) {
  return fmt::format("'{}' cannot be written: {}", root.string(), std::strerror(error));
}

/// Temporary folders of processes that were killed; a day is longer than any compilation.
void remove_old_temporaries(const fs::path& folder) {
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    const auto time = fs::last_write_time(it->path(), ignored);
    if (!ignored && now - time > std::chrono::hours(24)) fs::remove_all(it->path(), ignored);
  }
}

}  // namespace

std::string kernel_key(const CudaSource& source, NvrtcVersion version) {
  Sha256 hash;
  hash.add_field(fmt::format("difuse kernel {}", kFormat)).add_field(version.text()).add_field(source.architecture);
  hash.add_field(source.name).add_field(source.source);
  for (const std::string& option : nvrtc_options(source, version)) hash.add_field(option);
  return hash.hex();
}

fs::path kernel_cache_folder(const ir::Options& options) {
  if (!options.cache.empty()) return fs::path(options.cache) / "kernels";
  if (!options.user_cache.empty()) return fs::path(options.user_cache) / "difuse" / "kernels";
  return {};
}

/// What lies at an entry's place: the kernel, or nothing, or something unusable.
struct KernelCache::Lookup {
  std::shared_ptr<const CompiledKernel> kernel;
  std::string damage;  ///< Why what is there cannot be used; empty when nothing is there.
};

KernelCache::KernelCache(fs::path root, Warn warn) : root_(std::move(root)), warn_(std::move(warn)) {}

fs::path KernelCache::entry_folder(const CudaSource& source, NvrtcVersion version) const {
  constexpr size_t kMostNameBytes = 200;  // File systems end a name at 255 bytes.
  return root_ / fmt::format("{}-{}", source.name.substr(0, kMostNameBytes), kernel_key(source, version).substr(0, 16));
}

KernelCache::Counts KernelCache::counts() const {
  const std::scoped_lock lock(mutex_);
  return counts_;
}

std::shared_ptr<const CompiledKernel> KernelCache::find(const CudaSource& source, NvrtcVersion version) {
  const std::string key = kernel_key(source, version);
  {
    const std::scoped_lock lock(mutex_);
    if (const auto it = kernels_.find(key); it != kernels_.end()) {
      ++counts_.memory_hits;
      return it->second;
    }
  }
  Lookup found;
  if (!root_.empty()) found = read_entry(source, version, key);
  const std::scoped_lock lock(mutex_);
  if (found.kernel) {
    ++counts_.disk_hits;
    return kernels_.try_emplace(key, found.kernel).first->second;
  }
  ++counts_.misses;
  if (!found.damage.empty()) {
    ++counts_.damaged;
    if (warn_) {
      warn_(fmt::format("kernel cache: '{}' is compiled again: {}", entry_folder(source, version).string(),
                        found.damage));
    }
  }
  return nullptr;
}

KernelCache::Lookup KernelCache::read_entry(const CudaSource& source, NvrtcVersion version,
                                            const std::string& key) const {
  Lookup result;
  const EntryFolder folder(entry_folder(source, version));
  if (!folder.is_open()) {
    struct stat status {};
    // A parent that is no folder is for `publish` to report. Something else in the entry's place stands in the way; an
    // entry that was not there a moment ago does not.
    if (folder.open_error() != ENOENT && ::lstat(entry_folder(source, version).c_str(), &status) == 0) {
      result.damage = fmt::format("it is not a readable folder ({})", std::strerror(folder.open_error()));
    }
    return result;
  }
  std::string& why = result.damage;
  const auto text = folder.read(kMetaFile, std::nullopt, why);
  if (!text) return result;
  const auto meta = unsealed(*text);
  if (!meta) {
    why = fmt::format("{} is damaged", kMetaFile);
    return result;
  }
  if (meta->value("format", 0) != kFormat || meta->value("key", "") != key) {
    why = "it is of another kernel";
    return result;
  }
  // Sealed and of this format: from here on every field is there.
  const auto written = folder.read(kSourceFile, source.source.size(), why);
  if (!written) return result;
  if (*written != source.source) {
    why = fmt::format("{} is not the source", kSourceFile);
    return result;
  }
  const auto cubin = folder.read(kCubinFile, meta->at("cubin_bytes").get<size_t>(), why);
  if (!cubin) return result;
  if (Sha256().add(*cubin).hex() != meta->at("cubin_sha256").get<std::string>()) {
    why = fmt::format("{} is damaged", kCubinFile);
    return result;
  }
  auto kernel = std::make_shared<CompiledKernel>();
  kernel->name = source.name;
  kernel->architecture = source.architecture;
  const auto bytes = std::as_bytes(std::span(*cubin));
  kernel->cubin.assign(bytes.begin(), bytes.end());
  const json& resources = meta->at("resources");
  kernel->resources = {.registers = resources.at("registers"),
                       .barriers = resources.at("barriers"),
                       .static_shared_bytes = resources.at("static_shared_bytes"),
                       .local_bytes = resources.at("local_bytes"),
                       .constant_bytes = resources.at("constant_bytes")};
  kernel->log = meta->at("log");
  kernel->seconds = meta->at("seconds");
  result.kernel = std::move(kernel);
  return result;
}

std::shared_ptr<const CompiledKernel> KernelCache::store(const CudaSource& source, NvrtcVersion version,
                                                         CompiledKernel kernel) {
  const std::string key = kernel_key(source, version);
  std::shared_ptr<const CompiledKernel> kept;
  {
    const std::scoped_lock lock(mutex_);
    const auto [it, is_new] = kernels_.try_emplace(key);
    if (!is_new) return it->second;
    it->second = std::make_shared<const CompiledKernel>(std::move(kernel));
    kept = it->second;
  }
  if (root_.empty()) {
    stay_in_memory("no folder for compiled kernels is known (neither DIFUSE_CACHE nor HOME is set)");
  } else if (may_write()) {
    publish(source, version, key, *kept);
  }
  return kept;
}

bool KernelCache::may_write() const {
  const std::scoped_lock lock(mutex_);
  return writable_;
}

void KernelCache::stay_in_memory(const std::string& why) {
  const std::scoped_lock lock(mutex_);
  if (!std::exchange(writable_, false)) return;
  if (warn_) {
    warn_(
        fmt::format("kernel cache: {}; kernels are kept in memory and compiled again next time: set DIFUSE_CACHE to "
                    "a folder that can be written",
                    why));
  }
}

/// A fresh folder below tmp/. Empty, after the warning, where none can be made.
fs::path KernelCache::make_temporary() {
  const fs::path parent = root_ / kTemporaries;
  std::error_code error;
  fs::create_directories(parent, error);
  bool sweep = false;
  {
    const std::scoped_lock lock(mutex_);
    sweep = !std::exchange(swept_, true);
  }
  if (sweep) remove_old_temporaries(parent);
  // Another machine's process, or a dead one, may have had the same id.
  constexpr int kMostAttempts = 10'000;
  for (int attempt = 0; !error && attempt < kMostAttempts; ++attempt) {
    int number = 0;
    {
      const std::scoped_lock lock(mutex_);
      number = temporaries_++;
    }
    fs::path folder = parent / fmt::format("{}.{}", ::getpid(), number);
    if (::mkdir(folder.c_str(), 0777) == 0) return folder;
    if (errno != EEXIST || attempt + 1 == kMostAttempts) error.assign(errno, std::generic_category());
  }
  stay_in_memory(cannot_write(root_, error.value()));
  return {};
}

void KernelCache::publish(const CudaSource& source, NvrtcVersion version, const std::string& key,
                          const CompiledKernel& kernel) {
  const fs::path temporary = make_temporary();
  if (temporary.empty()) return;
  int error = write_durably(temporary / kSourceFile, source.source);
  if (error == 0) error = write_durably(temporary / kCubinFile, as_text(kernel.cubin));
  if (error == 0) error = write_durably(temporary / kMetaFile, describe(source, version, key, kernel));

  const fs::path place = entry_folder(source, version);
  // Another process may publish, or clear away, the same entry between any two steps.
  for (int attempt = 0; error == 0 && attempt < 10; ++attempt) {
    if (::rename(temporary.c_str(), place.c_str()) == 0) return;
    if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR) {
      error = errno;
      break;
    }
    if (read_entry(source, version, key).kernel) break;  // Somebody was faster: theirs is as good.
    const fs::path aside = make_temporary();
    if (aside.empty()) break;
    ::rename(place.c_str(), (aside / "old").c_str());
    std::error_code ignored;
    fs::remove_all(aside, ignored);
  }
  std::error_code ignored;
  fs::remove_all(temporary, ignored);
  if (error != 0) stay_in_memory(cannot_write(root_, error));
}

std::optional<NvrtcStamp> KernelCache::last_compiler() const {
  if (root_.empty()) return std::nullopt;
  const EntryFolder folder(root_);
  std::string why;
  if (!folder.is_open()) return std::nullopt;
  const auto text = folder.read(kStampFile, std::nullopt, why);
  const auto object = text ? unsealed(*text) : std::nullopt;
  if (!object || object->value("format", 0) != kFormat) return std::nullopt;
  NvrtcStamp stamp{.path = object->at("path"),
                   .bytes = object->at("bytes"),
                   .modified_ns = object->at("modified_ns"),
                   .version = NvrtcVersion::parse(object->at("version"))};
  if (stamp.version < kOldestNvrtc) return std::nullopt;
  return stamp;
}

void KernelCache::set_last_compiler(const NvrtcStamp& stamp) {
  if (root_.empty() || !may_write() || last_compiler() == stamp) return;
  const fs::path temporary = make_temporary();
  if (temporary.empty()) return;
  const std::string text = sealed({{"format", kFormat},
                                   {"path", stamp.path},
                                   {"bytes", stamp.bytes},
                                   {"modified_ns", stamp.modified_ns},
                                   {"version", stamp.version.text()}});
  int error = write_durably(temporary / kStampFile, text);
  if (error == 0 && ::rename((temporary / kStampFile).c_str(), (root_ / kStampFile).c_str()) != 0) error = errno;
  std::error_code ignored;
  fs::remove_all(temporary, ignored);
  if (error != 0) stay_in_memory(cannot_write(root_, error));
}

}  // namespace difuse::codegen
