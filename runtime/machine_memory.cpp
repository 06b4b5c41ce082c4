#include "runtime/machine_memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "ir/error.h"

namespace difuse::runtime {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

/// "max", and a file that is not there, are no limit.
int64_t limit_in(const fs::path& file) {
  int64_t bytes = 0;
  return std::ifstream(file) >> bytes && bytes > 0 ? bytes : kNoLimit;
}

/// The least of the group's own and those of the groups that it is in. In a container the group may be shown as the
/// root.
int64_t limit_of_group() {
  const fs::path root = "/sys/fs/cgroup";
  int64_t least = std::min(limit_in(root / "memory.max"), limit_in(root / "memory/memory.limit_in_bytes"));
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::/")) continue;  // Version 2 has one hierarchy, number 0.
    for (fs::path group = line.substr(4); !group.empty(); group = group.parent_path()) {
      least = std::min(least, limit_in(root / group / "memory.max"));
    }
  }
  return least;
}

}  // namespace

int64_t machine_memory() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return std::min(pages > 0 && page > 0 ? pages * page : kNoLimit, limit_of_group());
}

void require_machine_memory(int64_t bytes, std::string_view what) {
  const int64_t most = machine_memory();
  if (bytes <= most) return;
  throw Error(fmt::format("{} needs {:.1f} GB of memory, and this machine has {:.1f} GB", what,
                          static_cast<double>(bytes) / 1e9, static_cast<double>(most) / 1e9),
              "use a smaller batch, image size or model");
}

}  // namespace difuse::runtime
