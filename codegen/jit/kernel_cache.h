// Compiled kernels, kept in memory and in a folder, by content: source, options, NVRTC version and architecture.
//
// <root>/<kernel name>-<first 16 digits of the key>/
//   kernel.cu      the source, as compiled
//   kernel.cubin   the code
//   meta.json      key, options, resources, the compiler's log, sizes and hashes; and a hash of all that
// <root>/nvrtc.json   the library that compiled last, so that a warm start need not open it
// <root>/tmp/         entries being written, each in a folder of its own until it is renamed into place
//
// Many processes may share one folder: an entry appears whole or not at all, and is verified whenever it is read. One
// that is damaged, or that something else put there, is reported in one line and made again.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "codegen/jit/kernel.h"
#include "codegen/jit/nvrtc.h"
#include "ir/options.h"

namespace difuse::codegen {

/// SHA-256, in hexadecimal, of all that decides what code a source becomes.
std::string kernel_key(const CudaSource& source, NvrtcVersion version);

/// DIFUSE_CACHE, else the user's cache folder, with /kernels behind it; empty where neither is known.
std::filesystem::path kernel_cache_folder(const ir::Options& options);

class KernelCache {
 public:
  /// Called from one thread at a time; may not call the cache.
  using Warn = std::function<void(const std::string& line)>;

  struct Counts {
    int memory_hits = 0, disk_hits = 0, misses = 0;
    int damaged = 0;  ///< Entries found unusable; each is a miss as well.
  };

  /// Nothing is created before the first kernel is stored. An empty `root`, or one that cannot be written, means that
  /// kernels stay in memory: `warn` gets one line, once. All members may be called from several threads at once.
  explicit KernelCache(std::filesystem::path root, Warn warn = {});

  /// Null on a miss.
  std::shared_ptr<const CompiledKernel> find(const CudaSource& source, NvrtcVersion version);

  /// Keeps a kernel that `find` did not have, and returns what is kept.
  std::shared_ptr<const CompiledKernel> store(const CudaSource& source, NvrtcVersion version, CompiledKernel kernel);

  /// The library that filled this folder last, whether or not it is still there.
  std::optional<NvrtcStamp> last_compiler() const;
  void set_last_compiler(const NvrtcStamp& stamp);

  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path entry_folder(const CudaSource& source, NvrtcVersion version) const;
  Counts counts() const;

 private:
  struct Lookup;
  Lookup read_entry(const CudaSource& source, NvrtcVersion version, const std::string& key) const;
  void publish(const CudaSource& source, NvrtcVersion version, const std::string& key, const CompiledKernel& kernel);
  std::filesystem::path make_temporary();
  bool may_write() const;
  void stay_in_memory(const std::string& why);

  const std::filesystem::path root_;
  const Warn warn_;
  mutable std::mutex mutex_;  ///< Guards what follows; not held while files are read or written.
  std::map<std::string, std::shared_ptr<const CompiledKernel>> kernels_;
  Counts counts_;
  bool writable_ = true;
  bool swept_ = false;
  int temporaries_ = 0;
};

}  // namespace difuse::codegen
