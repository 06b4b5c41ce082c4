// Everything that the environment can say, parsed once. Nothing else in difuse reads the environment.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace difuse::ir {

/// Where the tiles of CUDA kernels come from.
enum class Tuning : uint8_t {
  off,     ///< Estimates alone.
  cached,  ///< Tables of decisions, the program's and the user's; estimates where they know nothing.
  on,      ///< The same, after tuning what they do not know.
};

struct Options {
  bool debug = false;  ///< DIFUSE_DEBUG=0|1: print each pass with its time.
  std::string dump;    ///< DIFUSE_DUMP=DIR: write every pass's before and after IR, and the CUDA sources, there.
  std::vector<std::string> disable;  ///< DIFUSE_DISABLE=pass,pass: passes to skip.
  std::optional<int64_t> fuel;       ///< DIFUSE_FUEL=N: rewrites allowed in all; for bisecting.
  Tuning tune = Tuning::cached;      ///< DIFUSE_TUNE=off|cached|on|SECONDS.
  double tune_budget = std::numeric_limits<double>::infinity();  ///< The seconds that tuning may take.
  std::string cache;                                             ///< DIFUSE_CACHE=DIR: where compiled kernels are kept.
  bool cuda_graphs = true;  ///< DIFUSE_CUDA_GRAPHS=0|1: capture steps, or launch kernel by kernel.

  // Set for all programs of a machine, not for difuse: an empty value counts as none.
  std::string cuda_toolkit;  ///< CUDA_HOME, else CUDA_PATH: a toolkit to look into for NVRTC before the usual places.
  std::string user_cache;    ///< XDG_CACHE_HOME, else HOME/.cache; empty where neither is set.

  /// `lookup` gives a variable's value or nullptr. Throws Error (wrong_usage) with the grammar of a
  /// malformed value.
  static Options parse(const std::function<const char*(const char*)>& lookup);
  static Options from_environment();
};

/// One row of the environment table of the README and `difuse doctor`.
struct OptionRow {
  const char* variable;
  const char* grammar;
  const char* meaning;
};
const std::vector<OptionRow>& option_table();

}  // namespace difuse::ir
