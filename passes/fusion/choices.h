// What decides about fusions beside the cost model: what a person wants, what a device's kernels can do, and what was
// measured before.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "ir/graph.h"

namespace difuse::passes {

/// Whether a contraction computes its image operand on the way in (prologue.h).
enum class Prologues : uint8_t {
  automatic,  ///< Where the cost model expects that it is faster.
  always,     ///< Wherever the device can.
  never,
};

/// Decisions about single sites, as data: they come before the cost model. A site's key is what the report calls it:
/// the ops, the shape that they run over, and who reads what they make.
struct FusionChoices {
  std::map<std::string, bool, std::less<>> prologues;  ///< By site: whether its readers compute it.
};

/// Why no kernel of the device computes such a body, a contraction with a prologue; empty where one does.
using PrologueLimits = std::function<std::string(const ir::Graph& body)>;

struct FusionSettings {
  bool epilogues = true;  ///< false: contractions and averages stay plain nodes.
  Prologues prologues = Prologues::automatic;
  PrologueLimits prologue_limits = {};  ///< Null: the device's kernels read what is in memory.
  FusionChoices choices = {};
};

}  // namespace difuse::passes
