// The optimizer as graph: AdamW (Loshchilov and Hutter, 2019), exponential moving averages, clipping by the global
// norm, and the refusal of a step whose gradient is not finite. Everything is written once over the flat parameter
// vector.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/builder.h"

namespace difuse::models {

enum class LearningRateSchedule : uint8_t { constant, cosine };

std::string_view to_string(LearningRateSchedule schedule);
std::optional<LearningRateSchedule> parse_learning_rate_schedule(std::string_view text);

struct OptimizerConfig {
  double learning_rate = 1e-4;
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;  ///< Decoupled, on every parameter.
  double clip_norm = 0;     ///< Largest global norm of the gradient; 0: no clipping.
  int64_t warmup = 0;       ///< Steps over which the rate rises linearly.
  LearningRateSchedule schedule = LearningRateSchedule::constant;
  int64_t total_steps = 0;                    ///< cosine: the step at which the rate reaches 0.
  std::vector<double> ema_decays = {0.9999};  ///< One average each: states "ema", "ema_1", ...

  bool operator==(const OptimizerConfig&) const = default;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("learning_rate", learning_rate), v("beta1", beta1), v("beta2", beta2), v("eps", eps);
    v("weight_decay", weight_decay), v("clip_norm", clip_norm), v("warmup", warmup), v("schedule", schedule);
    v("total_steps", total_steps), v("ema_decays", ema_decays);
  }
};

/// Throws Error (wrong usage) with a choice that works.
void check(const OptimizerConfig& config);

/// "ema", "ema_1", "ema_2", ...
std::string ema_state(size_t i);

/// What a step says of itself, all f32 [].
struct OptimizerReport {
  ir::Value gradient_norm;  ///< Before clipping.
  ir::Value nonfinite;      ///< Gradient elements that are infinite or NaN; 1 when only the norm overflows.
  ir::Value learning_rate;
};

/// Adds the step that follows from `gradient` f32[P]: states "adam_m" and "adam_v", one per average, and the updates of
/// these and of the state `params` f32[P]. `step` i32 [] is the number of finished steps. A step with nonfinite > 0
/// leaves parameters, moments and averages as they were, and so does one whose `apply` f32 [], where given, is 0 and
/// not
/// 1. An average's decay is min(decay, (1 + step) / (10 + step)), so that a young average is not mostly the initial
/// parameters.
OptimizerReport add_optimizer(ir::Builder& build, const OptimizerConfig& config, ir::Value params, ir::Value gradient,
                              ir::Value step, ir::Value apply = {});

}  // namespace difuse::models
