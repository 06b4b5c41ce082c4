// codegen/tune/ keeps what a tuner found out, as data: which tile each problem's kernel is made with, and which
// contractions compute the image that they read. What must not live here: making kernels (codegen/cuda/) and timing
// them (runtime/tune/).
//
// This file: the decisions for one card, and their text form.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "passes/fusion/choices.h"
#include "passes/nearest_batch.h"

namespace difuse::codegen {

/// A tile never changes a bit of a result, so a decision is about time alone.
struct Decision {
  std::string tile;                 ///< As its emitter names it: "128x64x32 2x2 4 stages".
  double microseconds = 0;          ///< Of the kernel, measured.
  double default_microseconds = 0;  ///< Of the kernel that it had without a decision, in the same measurement.

  bool operator==(const Decision&) const = default;
};

/// Whether the readers of an image compute it (passes/fusion/prologue.h), which changes no bit either.
struct PrologueDecision {
  bool computed = false;
  double computed_microseconds = 0;  ///< Of a whole step in which they do, measured.
  double stored_microseconds = 0;    ///< Of the same step where they do not, in the same measurement.

  bool operator==(const PrologueDecision&) const = default;
};

class TuningTable {
 public:
  using Key = passes::BatchKey;

  void set(const std::string& problem, int64_t batch, Decision decision);
  /// The site as passes::FusionChoices know it.
  void set_prologue(const std::string& site, int64_t batch, PrologueDecision decision);
  /// Forgets every decision for this tile, at whatever batch, and lets none be made with it. Not part of the text form:
  /// the next compiler may take the tile.
  void forbid(const std::string& problem, const std::string& tile);
  bool is_forbidden(const std::string& problem, const std::string& tile) const {
    return forbidden_.contains({problem, tile});
  }
  /// Takes over all of `news`.
  void merge(const TuningTable& news);

  /// Null where this very batch was not measured.
  const Decision* exact(const std::string& problem, int64_t batch) const;
  /// That of the batch whose ratio to `batch` is nearest to 1, the smaller of two; null where there is none at all.
  const Decision* find(const std::string& problem, int64_t batch) const;

  const std::map<Key, Decision>& decisions() const { return decisions_; }
  const std::map<Key, PrologueDecision>& prologues() const { return prologues_; }
  /// What the passes need to know of them.
  passes::FusionChoices choices() const;
  bool empty() const { return decisions_.empty() && prologues_.empty(); }
  bool operator==(const TuningTable&) const = default;

 private:
  std::map<Key, Decision> decisions_;
  std::map<Key, PrologueDecision> prologues_;
  std::set<std::pair<std::string, std::string>> forbidden_;  // Problem and tile.
};

/// What the times hold for.
struct TunedDevice {
  std::string gpu;  ///< By the driver: "NVIDIA H200".
  int64_t processors = 0;
  std::string driver;  ///< "13.0".

  bool operator==(const TunedDevice&) const = default;
};

struct TuningFile {
  TunedDevice device;
  TuningTable table;
};

/// JSON, one line a decision, ordered: the same content is the same text.
std::string print(const TuningFile& file);

/// Throws Error that says what is wrong for any text that `print` could not have written, but for spaces and the order
/// of members. What it wrote before there were decisions about prologues (format 1) is still read.
TuningFile parse_tuning_file(std::string_view text);

}  // namespace difuse::codegen
