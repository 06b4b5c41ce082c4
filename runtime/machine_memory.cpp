#include "runtime/machine_memory.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "ir/error.h"

namespace difuse::runtime {
namespace {

/// Of the first file that holds a number; "max", and a file that is not there, are no limit.
int64_t limit_of_group() {
  for (const char* file : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    int64_t bytes = 0;
    if (std::ifstream(file) >> bytes && bytes > 0) return bytes;
  }
  return std::numeric_limits<int64_t>::max();
}

}  // namespace

int64_t machine_memory() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return std::min(pages > 0 && page > 0 ? pages * page : std::numeric_limits<int64_t>::max(), limit_of_group());
}

void require_machine_memory(int64_t bytes, std::string_view what) {
  const int64_t most = machine_memory();
  if (bytes <= most) return;
  throw Error(fmt::format("{} needs {:.1f} GB of memory, and this machine has {:.1f} GB", what,
                          static_cast<double>(bytes) / 1e9, static_cast<double>(most) / 1e9),
              "use a smaller batch, image size or model");
}

}  // namespace difuse::runtime
