// Sampling: one graph is one step, and the state "position" says which.
//
// Both samplers are one linear rule with tables: from the model's eps, x0 = a x - b eps, clipped to [-1, 1], and then
// x' = c x0 + d x + s noise. The kept steps form a schedule of their own: with fewer steps than the model was trained
// on, betas are recomputed for them and the model still sees its own timesteps (Nichol and Dhariwal, 2021).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "models/diffusion/ddpm.h"
#include "models/unet_config.h"

namespace difuse::models {

enum class SamplerKind : uint8_t {
  ddim,  ///< Song, Meng and Ermon, 2021; `eta` 0 is deterministic.
  ddpm,  ///< Ancestral sampling, Ho et al., 2020.
};

std::string_view to_string(SamplerKind kind);
std::optional<SamplerKind> parse_sampler_kind(std::string_view text);

struct SamplerConfig {
  // Fresh noise at every step mends the errors of the steps before, which a young model makes many of.
  SamplerKind kind = SamplerKind::ddpm;
  int64_t steps = 100;
  double eta = 0;               ///< ddim: share of the ancestral noise, 0 to 1.
  bool large_variance = false;  ///< ddpm: variance beta instead of the posterior's; not read with a learned variance.
  bool clip_x0 = true;
  int64_t batch = 16;

  bool operator==(const SamplerConfig&) const = default;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("kind", kind), v("steps", steps), v("eta", eta), v("large_variance", large_variance), v("clip_x0", clip_x0);
    v("batch", batch);
  }
};

/// Throws Error (wrong usage) with a choice that works.
void check(const SamplerConfig& config, const DiffusionConfig& diffusion);

/// The kept timesteps, increasing: evenly spaced from 0 to timesteps - 1; a single step is the last.
std::vector<int64_t> kept_timesteps(int64_t timesteps, int64_t steps);

/// One entry per position; position 0 is the noisiest step.
struct SamplerTables {
  std::vector<double> timestep;                               ///< What the model sees.
  std::vector<double> x_to_x0, eps_to_x0;                     ///< x0 = x_to_x0 x - eps_to_x0 eps
  std::vector<double> x0_weight, x_weight, noise;             ///< x' = x0_weight x0 + x_weight x + noise z
  std::vector<double> least_log_variance, most_log_variance;  ///< Range of a learned variance (of the posterior; beta).
};
SamplerTables sampler_tables(const SamplerConfig& config, const DiffusionConfig& diffusion);

/// x' from the model's output f32 [N, H, W, C or 2C] at x f32 [N, H, W, C], position i32 [] and noise like x, which may
/// be invalid where no position adds any.
ir::Value sampler_update(ir::Builder& build, const SamplerConfig& config, const SamplerTables& tables,
                         ir::Value model_output, ir::Value x, ir::Value position, ir::Value noise);

/// inputs  "index" i32[N]: which image of the requested set; "label" i32[N] where the model has classes
/// states  "seed" u32[2], "params" f32[P], "x" f32[N, H, W, C], "position" i32[]: finished steps, below `steps`
/// A step at position 0 starts from noise drawn by (seed, index) whatever "x" holds, so drawing images is: set
/// "position" to 0, run `steps` times, read "x", in [-1, 1]. Image i of a batch is image i drawn alone.
ir::Graph build_sampling_step(const UNetConfig& unet, const DiffusionConfig& diffusion, const SamplerConfig& config);

}  // namespace difuse::models
