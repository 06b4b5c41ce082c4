// The training configuration in the user's words, as flags, TOML files and `difuse inspect` have it.
#pragma once

#include <cstdint>

#include "models/training_step.h"

namespace difuse::models {

/// A batch is what one optimizer step sees, in however many parts it is computed.
struct TrainingTable {
  int64_t batch = 64;      ///< Images a step.
  int64_t microbatch = 0;  ///< Images at a time, whose gradients are averaged; divides `batch`. 0: all at once.
  OptimizerConfig optimizer;

  bool operator==(const TrainingTable&) const = default;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("batch", batch), v("microbatch", microbatch);
    optimizer.visit(v);
  }
};

TrainingTable to_table(const TrainingConfig& config);
/// Throws Error (wrong usage) with the arithmetic when the micro-batch does not divide the batch.
TrainingConfig from_table(const TrainingTable& table);

/// Images of one optimizer step.
inline int64_t step_images(const TrainingConfig& config) { return config.batch * config.accumulate; }

}  // namespace difuse::models
