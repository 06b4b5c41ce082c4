// One training step as one graph: draw t and noise, diffuse, predict, loss, backward, clip, AdamW, averages.
#pragma once

#include <string_view>

#include "ir/graph.h"
#include "models/diffusion/diffusion_config.h"
#include "models/optimizer.h"
#include "models/unet_config.h"

namespace difuse::models {

struct TrainingConfig {
  int64_t batch = 64;      ///< Images of one run of the graph.
  int64_t accumulate = 1;  ///< Runs whose gradients are averaged into one step of batch * accumulate images.
  OptimizerConfig optimizer;

  bool operator==(const TrainingConfig&) const = default;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("batch", batch), v("accumulate", accumulate);
    optimizer.visit(v);
  }
};

/// inputs  "pixels" u8[N, H, W, C], "index" i32[N]: position in the step's global batch; "label" i32[N] where the model
///         has classes
/// states  "seed" u32[2], "step" i32[]: finished steps, "params", "adam_m", "adam_v", "ema" (and "ema_1", ...) f32[P]
/// outputs "loss" f32[], "grad_norm" f32[], "nonfinite" f32[], "gradient" f32[P]: before clipping, "lr" f32[]
/// Every scalar that changes from step to step is state. A step with nonfinite > 0 leaves parameters, moments and
/// averages as they were and still counts in "step". Throws Error (wrong usage) when a configuration does not pass its
/// check.
///
/// The loss is the weighted mean squared error of the network's answer to its task (objective.h). A model with a
/// learned variance adds the t-th term of the variational bound, in bits per element, which teaches the variance alone
/// (learned_variance.h). Its weight is 1 whatever the number of timesteps: that is guided-diffusion's loss for
/// ImageNet-64 (rescale_learned_sigmas off), and with its 1000 timesteps the paper's L_simple + 0.001 L_vlb.
/// rescale_learned_sigmas makes it the paper's with any number.
///
/// With accumulate = k > 1 one run is one of the k micro-batches of a step. There are two states more, both zero
/// between steps: "micro" i32[], the runs of this step so far, and "accumulated" f32[P], the sum of their gradients
/// over k. The k-th run steps; the others change these two alone. "step" is the same in all k runs, so with index =
/// micro * N + i the draws are those of one run on all k * N images. "loss" and "lr" are the run's own; the mean of the
/// k losses is the step's. "gradient", "grad_norm" and "nonfinite" are of the accumulation with this run's part in it,
/// so in the k-th run they are the step's. One micro-batch whose gradient is not finite spoils its step, which is then
/// skipped and counted once.
///
/// A model that enlarges images sees the low-resolution ones of the batch beside the noisy ones (low_res.h).
///
/// `flip` adds the input "flip" u8[N]: images where it is not 0 are mirrored left to right.
ir::Graph build_training_step(const UNetConfig& unet, const DiffusionConfig& diffusion, const TrainingConfig& config,
                              bool flip = false);

/// Whether the state is part of a step under way. Checkpoints are made between steps and leave it out.
bool is_within_step(std::string_view state);

/// The forward alone: the same inputs, states "seed", "step" and "params", and the output "loss".
ir::Graph build_training_loss(const UNetConfig& unet, const DiffusionConfig& diffusion, int64_t batch);

}  // namespace difuse::models
