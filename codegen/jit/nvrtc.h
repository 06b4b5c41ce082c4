// NVRTC, NVIDIA's run-time compiler, loaded by name: the binary neither links it nor needs its header to build.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/jit/kernel.h"

namespace difuse::codegen {

struct NvrtcVersion {
  int major = 0, minor = 0;

  auto operator<=>(const NvrtcVersion&) const = default;
  std::string text() const;  ///< "13.0"
  /// Of "13.0"; 0.0 where the text is not a version.
  static NvrtcVersion parse(const std::string& text);
};

/// Older ones know no C++20 and no sm_90a.
inline constexpr NvrtcVersion kOldestNvrtc = {12, 0};

/// Where to look: in `toolkit`, by the dynamic loader's own rules, and in /usr/local/cuda; in each, newest version
/// first.
struct NvrtcSearch {
  std::string toolkit;  ///< ir::Options::cuda_toolkit: a folder that holds lib64/ or lib/; may be empty.
  /// The newest major version wanted, 0 for any: a driver does not load code from a toolkit of a newer major version
  /// than its own.
  int newest_major = 0;
};

/// A library's identity without opening it: while the file is the same, so is the version.
struct NvrtcStamp {
  std::string path;
  uint64_t bytes = 0;
  int64_t modified_ns = 0;
  NvrtcVersion version;

  bool operator==(const NvrtcStamp&) const = default;
  bool is_unchanged() const;  ///< Whether the file still has this size and time.
  bool is_gone() const;       ///< Whether there is no such file any more.
};

/// The whole list of options that a source is compiled with, `source.options` last.
std::vector<std::string> nvrtc_options(const CudaSource& source, NvrtcVersion version);

struct NvrtcFunctions;

class NvrtcLibrary {
 public:
  /// Null where no usable NVRTC is found; `reason`, where given, then says in one sentence what was looked for.
  static std::shared_ptr<const NvrtcLibrary> load(const NvrtcSearch& search = {}, std::string* reason = nullptr);

  NvrtcVersion version() const { return stamp_.version; }
  const NvrtcStamp& stamp() const { return stamp_; }
  /// Compute capabilities times ten that it compiles for, ascending; empty where the library does not say.
  std::span<const int> architectures() const { return architectures_; }

  /// Compiles one kernel; may be called from several threads at once. Throws Error naming the kernel:
  /// - the source does not compile (with the compiler's own lines), or defines no kernel of that name,
  /// - the compiled code uses local memory, or lost `setmaxnreg` or asynchronous wgmma (see find_fault),
  /// - wrong_usage: this NVRTC does not know the architecture.
  CompiledKernel compile(const CudaSource& source) const;

 private:
  explicit NvrtcLibrary(std::shared_ptr<const NvrtcFunctions> functions, NvrtcStamp stamp);

  std::shared_ptr<const NvrtcFunctions> functions_;
  NvrtcStamp stamp_;
  std::vector<int> architectures_;
};

}  // namespace difuse::codegen
