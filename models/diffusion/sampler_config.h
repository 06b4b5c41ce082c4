// How images are drawn.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

#include "models/diffusion/diffusion_config.h"

namespace difuse::models {

enum class SamplerKind : uint8_t {
  ddpm,    ///< Ancestral sampling, Ho et al., 2020.
  ddim,    ///< Song, Meng and Ermon, 2021; `eta` 0 is deterministic, 1 is ancestral.
  euler,   ///< Karras et al., 2022, algorithm 2 without its second evaluation.
  heun,    ///< Karras et al., 2022, algorithm 2: second order, two evaluations a step but the last.
  dpmpp2m  ///< DPM-Solver++(2M), Lu et al., 2022 (arXiv 2211.01095), algorithm 2: second order, one evaluation a step.
};

/// Which noise levels are visited. The timesteps of the last three are 0 .. T - 1 in n steps.
enum class Spacing : uint8_t {
  karras,    ///< sigma^(1 / rho) falls evenly from the most to the least (Karras et al., 2022, equation 5).
  linear,    ///< Evenly from T - 1 to 0, rounded; a single step is T - 1. In an edm process, sigma falls evenly.
  trailing,  ///< T - 1 and then every T / n, rounded.
  leading,   ///< Multiples of T / n rounded down, 0 the last: the noisiest timesteps are never seen.
};

/// What is done to the x_0 that the network finds.
enum class Clipping : uint8_t {
  none,
  clip,     ///< To [-1, 1].
  dynamic,  ///< To [-s, s] and divided by s, s being the percentile of |x_0| or 1 (Saharia et al., Imagen, 2022).
};

std::string_view to_string(SamplerKind kind);
std::string_view to_string(Spacing spacing);
std::string_view to_string(Clipping clipping);
std::optional<SamplerKind> parse_sampler_kind(std::string_view text);
std::optional<Spacing> parse_spacing(std::string_view text);
std::optional<Clipping> parse_clipping(std::string_view text);

struct SamplerConfig {
  SamplerKind kind = SamplerKind::ddpm;
  int64_t batch = 16;
  Clipping clipping = Clipping::clip;
  double percentile = 0.995;  ///< dynamic: share of the pixels within s.

  // The fields above, whether noise is drawn (eta and churn above 0) and whether the guidance is 1 make a graph; all
  // else is data of it.
  int64_t steps = 100;
  Spacing spacing = Spacing::linear;
  double rho = 7;                       ///< karras
  double sigma_min = 0, sigma_max = 0;  ///< The range of karras, and of linear in edm; 0: the process's own.
  double eta = 0;                       ///< ddim: share of the ancestral noise, 0 to 1.
  bool large_variance = false;  ///< ddpm: variance beta instead of the posterior's; not read with a learned variance.
  double guidance = 1;          ///< Classifier-free: answer without label + guidance * (answer with label - without).
  // euler and heun: S_churn, S_noise, and S_tmin to S_tmax, in sigma.
  double churn = 0, churn_noise = 1, churn_min = 0, churn_max = std::numeric_limits<double>::max();

  bool operator==(const SamplerConfig&) const = default;
};

/// What suits a process: 100 ancestral steps with clipping, whose fresh noise mends the errors that a young model makes
/// many of; in edm, as in its paper, 18 steps of heun without clipping. `kind` gives the settings for another sampler.
SamplerConfig default_sampler(const DiffusionConfig& diffusion, std::optional<SamplerKind> kind = std::nullopt);

/// Throws Error (wrong usage) with a choice that works.
void check(const SamplerConfig& config, const DiffusionConfig& diffusion);

/// Evaluations of the network in so many steps.
int64_t evaluations(SamplerKind kind, int64_t steps);

}  // namespace difuse::models
