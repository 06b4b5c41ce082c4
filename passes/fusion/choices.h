// What decides about fusions beside the cost model: what a person wants, what a device's kernels can do, and what was
// measured before.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "ir/graph.h"
#include "passes/nearest_batch.h"

namespace difuse::passes {

/// Whether a contraction computes its image operand on the way in (prologue.h).
enum class Prologues : uint8_t {
  automatic,  ///< Where a choice says so; else, with FusionSettings::estimates, where the cost model expects a gain.
  always,     ///< Wherever the device can.
  never,
};

/// Decisions about single sites, as data: they come before the cost model. A site is what the report calls it: the ops
/// and what they read and make, by type, and the contractions that read that. Types are those of one image, and a
/// decision holds for the batch that is nearest to where it was measured. No bit of a result depends on it.
struct FusionChoices {
  std::map<BatchKey, bool> prologues;  ///< By site and batch: whether its readers compute it.

  /// Null where nothing is known of the site.
  const bool* prologue(const std::string& site, int64_t batch) const { return nearest_batch(prologues, site, batch); }
};

/// Why no kernel of the device computes such a body, a contraction with a prologue; empty where one does.
using PrologueLimits = std::function<std::string(const ir::Graph& body)>;

struct FusionSettings {
  bool epilogues = true;  ///< false: contractions and averages stay plain nodes.
  Prologues prologues = Prologues::automatic;
  bool estimates = true;                ///< false: `automatic` is what the choices say alone.
  PrologueLimits prologue_limits = {};  ///< Null: the device's kernels read what is in memory.
  FusionChoices choices = {};
};

}  // namespace difuse::passes
