// Where decisions come from and go to: the tables inside the program, and the user's own in the cache folder.
//
// <cache>/tuning/<gpu>-<processors>-<driver>.json   one file per card and driver
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "codegen/tune/table.h"
#include "ir/options.h"

namespace difuse::codegen {

/// DIFUSE_CACHE, else the user's cache folder, with /tuning behind it; empty where neither is known.
std::filesystem::path tuning_folder(const ir::Options& options);

/// The decisions that come with the program for this card, whatever its driver: empty for most cards.
TuningTable shipped_decisions(const TunedDevice& device);

/// The user's decisions for one card and driver. Many processes may use one folder: a file appears whole or not at all,
/// and writers take turns. One that is damaged is reported in one line and begun again.
class TuningStore {
 public:
  using Warn = std::function<void(const std::string& line)>;

  /// An empty folder, or one that cannot be written, means that nothing is kept: `warn` gets one line.
  TuningStore(const std::filesystem::path& folder, TunedDevice device, Warn warn = {});

  /// Empty where there is no file yet; empty after a warning where the file is damaged.
  TuningTable load() const;
  /// The shipped decisions, and before them the user's.
  TuningTable all() const;
  /// Adds to what is there now. Whether it was kept.
  bool add(const TuningTable& news) const;

  const std::filesystem::path& path() const { return path_; }
  const TunedDevice& device() const { return device_; }

 private:
  void warn(const std::string& line) const;

  TunedDevice device_;
  std::filesystem::path path_;  // Empty: no folder.
  Warn warn_;
};

/// One of codegen/tune/tables/, which CMake embeds into the program.
struct EmbeddedTable {
  std::string_view name, text;
};
std::span<const EmbeddedTable> embedded_tables();

}  // namespace difuse::codegen
