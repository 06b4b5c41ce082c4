#include "codegen/tune/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "codegen/jit/entry_files.h"
#include "ir/error.h"

namespace difuse::codegen {

namespace fs = std::filesystem;

namespace {

std::string file_name(const TunedDevice& device) {
  std::string name = fmt::format("{}-{}-{}", device.gpu, device.processors, device.driver);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.') c = '-';
    c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return name + ".json";
}

/// While it lives, no other process that asks has the same lock. Where a file system knows no locks, two writers at the
/// same moment may lose one's news, but never the file.
class WriterLock {
 public:
  explicit WriterLock(const fs::path& path) : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
    if (file_ < 0) return;
    while (::flock(file_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~WriterLock() {
    if (file_ >= 0) ::close(file_);
  }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  int file_;
};

}  // namespace

fs::path tuning_folder(const ir::Options& options) {
  if (!options.cache.empty()) return fs::path(options.cache) / "tuning";
  if (!options.user_cache.empty()) return fs::path(options.user_cache) / "difuse" / "tuning";
  return {};
}

TuningTable shipped_decisions(const TunedDevice& device) {
  TuningTable table;
  for (const EmbeddedTable& embedded : embedded_tables()) {
    const TuningFile file = parse_tuning_file(embedded.text);
    if (file.device.gpu == device.gpu && file.device.processors == device.processors) table.merge(file.table);
  }
  return table;
}

TuningStore::TuningStore(const fs::path& folder, TunedDevice device, Warn warn)
    : device_(std::move(device)),
      path_(folder.empty() ? folder : folder / file_name(device_)),
      warn_(std::move(warn)) {}

void TuningStore::warn(const std::string& line) const {
  if (warn_) warn_("tuning decisions: " + line);
}

TuningTable TuningStore::load() const {
  if (path_.empty()) return {};
  const EntryFolder folder(path_.parent_path());
  if (!folder.is_open()) return {};
  std::error_code ignored;
  if (!fs::exists(path_, ignored)) return {};
  std::string why;
  const auto text = folder.read(path_.filename().c_str(), std::nullopt, why);
  if (text) {
    try {
      TuningFile file = parse_tuning_file(*text);
      if (file.device == device_) return std::move(file.table);
      why = "it is of another GPU or driver";
    } catch (const Error& error) {
      why = error.what();
    }
  }
  warn(fmt::format("'{}' is begun again: {}", path_.string(), why));
  return {};
}

TuningTable TuningStore::all() const {
  TuningTable table = shipped_decisions(device_);
  table.merge(load());
  return table;
}

bool TuningStore::add(const TuningTable& news) const {
  if (path_.empty()) {
    warn("not kept, for no folder for them is known (neither DIFUSE_CACHE nor HOME is set)");
    return false;
  }
  static std::atomic<int> count = 0;  // Tells apart the temporary files of one process.
  std::error_code error;
  fs::create_directories(path_.parent_path(), error);
  const WriterLock lock(path_.parent_path() / "lock");
  TuningTable table = load();
  table.merge(news);
  const fs::path temporary = path_.parent_path() / fmt::format("{}.{}.tmp", ::getpid(), count++);
  ::unlink(temporary.c_str());  // Of a dead process that had the same id.
  int failed = write_durably(temporary, print({device_, table}));
  if (failed == 0 && ::rename(temporary.c_str(), path_.c_str()) != 0) failed = errno;
  if (failed == 0) return true;
  ::unlink(temporary.c_str());
  warn(fmt::format("not kept, for '{}' cannot be written: {}; set DIFUSE_CACHE to a folder that can be", path_.string(),
                   std::strerror(failed)));
  return false;
}

}  // namespace difuse::codegen
