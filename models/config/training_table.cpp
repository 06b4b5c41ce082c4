#include "models/config/training_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/error.h"

namespace difuse::models {

TrainingTable to_table(const TrainingConfig& config) {
  return {step_images(config), config.accumulate == 1 ? 0 : config.batch, config.optimizer};
}

TrainingConfig from_table(const TrainingTable& table) {
  const auto [batch, microbatch, optimizer] = table;
  if (batch < 1 || microbatch < 0) {
    throw Error(fmt::format("a batch of {} in micro-batches of {}", batch, microbatch),
                "choose a batch of 1 or more, and a micro-batch that divides it or 0", ExitCode::wrong_usage);
  }
  if (microbatch == 0) return {batch, 1, optimizer};
  if (const int64_t rest = batch % microbatch; rest != 0) {
    int64_t choice = std::min(microbatch, batch);
    while (batch % choice != 0) --choice;
    throw Error(fmt::format("a batch of {} is no whole number of micro-batches of {}: {} = {} x {} + {}", batch,
                            microbatch, batch, batch / microbatch, microbatch, rest),
                fmt::format("use --microbatch {}, or another --batch", choice), ExitCode::wrong_usage);
  }
  return {microbatch, batch / microbatch, optimizer};
}

}  // namespace difuse::models
