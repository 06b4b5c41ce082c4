// passes/ turns graphs into graphs. A pass is a pure function whose header is its specification: before -> after, when
// it is legal, and what it does to dtypes and rounding. What must not live here: CUDA, files, devices.
//
// A pass neither verifies, dumps, times nor counts; the pipeline does all of that (pipeline.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "ir/device_spec.h"
#include "ir/graph.h"

namespace difuse::passes {

/// How many rewrites may still be done; each rewrite asks once. For bisecting a wrong rewrite.
class Fuel {
 public:
  Fuel() = default;  ///< Unlimited.
  explicit Fuel(std::optional<int64_t> limit) : left_(limit) {}

  /// Whether one more rewrite may be done; counts it if so.
  bool spend() {
    if (left_ && *left_ == 0) return false;
    if (left_) --*left_;
    ++spent_;
    return true;
  }
  int64_t spent() const { return spent_; }

 private:
  std::optional<int64_t> left_;
  int64_t spent_ = 0;
};

struct PassContext {
  const ir::DeviceSpec& device;
  Fuel& fuel;
};

struct PassResult {
  ir::Graph graph;
  bool changed = false;  ///< The pipeline checks that this is honest.
};

struct Pass {
  std::string name;
  std::function<PassResult(const ir::Graph&, PassContext&)> run;
};

}  // namespace difuse::passes
