// What the grower did and did not do, for people.
#pragma once

#include <string>
#include <vector>

namespace difuse::passes {

struct FusionReport {
  /// One line each: "fused ...", "recomputed ...", "refused ...", in the order of the decisions. Node numbers are those
  /// of the graph before fusion.
  std::vector<std::string> lines;
};

}  // namespace difuse::passes
