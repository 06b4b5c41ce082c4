// One training step as one graph: draw t and noise, diffuse, predict, loss, backward, clip, AdamW, averages.
#pragma once

#include "ir/graph.h"
#include "models/diffusion/ddpm.h"
#include "models/optimizer.h"
#include "models/unet_config.h"

namespace difuse::models {

struct TrainingConfig {
  int64_t batch = 64;
  OptimizerConfig optimizer;

  bool operator==(const TrainingConfig&) const = default;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("batch", batch);
    optimizer.visit(v);
  }
};

/// inputs  "pixels" u8[N, H, W, C], "index" i32[N]: position in the step's global batch; "label" i32[N] where the model
///         has classes
/// states  "seed" u32[2], "step" i32[]: finished steps, "params", "adam_m", "adam_v", "ema" (and "ema_1", ...) f32[P]
/// outputs "loss" f32[]: mean squared error of the predicted noise, "grad_norm" f32[], "nonfinite" f32[], "gradient"
///         f32[P]: before clipping, "lr" f32[]
/// Every scalar that changes from step to step is state. A step with nonfinite > 0 leaves parameters, moments and
/// averages as they were and still counts in "step". Throws Error (wrong usage) when a configuration does not pass its
/// check.
ir::Graph build_training_step(const UNetConfig& unet, const DiffusionConfig& diffusion, const TrainingConfig& config);

/// The forward alone: the same inputs, states "seed", "step" and "params", and the output "loss".
ir::Graph build_training_loss(const UNetConfig& unet, const DiffusionConfig& diffusion, int64_t batch);

}  // namespace difuse::models
