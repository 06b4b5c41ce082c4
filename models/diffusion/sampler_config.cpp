#include "models/diffusion/sampler_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ir/error.h"
#include "models/diffusion/names.h"
#include "models/diffusion/noise_levels.h"

namespace difuse::models {
namespace {

bool is_stochastic_solver(SamplerKind kind) { return kind == SamplerKind::euler || kind == SamplerKind::heun; }

/// Whether the spacing goes by sigma, which has a range to choose.
bool has_range(const SamplerConfig& config, const DiffusionConfig& diffusion) {
  return config.spacing == Spacing::karras || diffusion.process == Process::edm;
}

/// Further out the coefficients of a step, or their products with an image, leave what f32 holds.
constexpr double kLeastSigma = 1e-6, kMostSigma = 1e6, kMostChurnNoise = 1e3;

void check_spacing(const SamplerConfig& config, const DiffusionConfig& diffusion) {
  const bool by_timestep = config.spacing == Spacing::trailing || config.spacing == Spacing::leading;
  if (by_timestep && diffusion.process == Process::edm) {
    wrong_usage(fmt::format("{} spacing is of timesteps, and an edm model has none", to_string(config.spacing)),
                "choose karras or linear spacing");
  }
  if (config.spacing == Spacing::leading && config.steps == 1) {
    wrong_usage("leading spacing in 1 step would see timestep 0 alone, which has no noise to begin with",
                "choose 2 or more steps, or another spacing");
  }
  if (!(config.rho > 0 && config.rho <= 100)) wrong_usage(fmt::format("rho is {}", config.rho), "choose up to 100");
  if (config.sigma_min == 0 && config.sigma_max == 0) return;
  if (!has_range(config, diffusion)) {
    wrong_usage(fmt::format("sigma_min and sigma_max have no meaning with {} spacing", to_string(config.spacing)),
                "leave them out, or choose karras spacing");
  }
  const NoiseLevels levels(diffusion);
  const double least = config.sigma_min == 0 ? levels.least() : config.sigma_min;
  const double most = config.sigma_max == 0 ? levels.most() : config.sigma_max;
  const bool known = diffusion.process == Process::edm || (least >= levels.least() && most <= levels.most());
  if (least >= kLeastSigma && least < most && most <= kMostSigma && known) return;
  wrong_usage(
      fmt::format("sigma from {} down to {}", most, least),
      diffusion.process == Process::edm
          ? fmt::format("choose --sigma-min from {} and --sigma-max above that, up to {}", kLeastSigma, kMostSigma)
          : fmt::format("choose --sigma-min and --sigma-max of the model's noise levels, {} to {}", levels.least(),
                        levels.most()));
}

void check_noise(const SamplerConfig& config) {
  if (!(config.eta >= 0 && config.eta <= 1)) wrong_usage(fmt::format("eta is {}", config.eta), "choose 0 to 1");
  if (config.eta > 0 && config.kind != SamplerKind::ddim) {
    wrong_usage(fmt::format("eta has no meaning with the {} sampler", to_string(config.kind)),
                "leave it out, or use the ddim sampler");
  }
  if (!(config.churn >= 0 && config.churn_noise >= 0 && config.churn_min >= 0)) {
    wrong_usage("a negative churn, or range or noise of it", "choose 0 or more");
  }
  if (config.churn_noise > kMostChurnNoise) {
    wrong_usage(fmt::format("--churn-noise is {}", config.churn_noise), fmt::format("choose 0 to {}", kMostChurnNoise));
  }
  if (config.churn_min > config.churn_max) {
    wrong_usage(fmt::format("--churn-min {} is above --churn-max {}, so that no noise is added anywhere",
                            config.churn_min, config.churn_max),
                "exchange them, or leave them out");
  }
  if (config.churn > 0 && !is_stochastic_solver(config.kind)) {
    wrong_usage(fmt::format("churn has no meaning with the {} sampler", to_string(config.kind)),
                "leave it out, or use the euler or heun sampler");
  }
}

}  // namespace

std::string_view to_string(SamplerKind kind) {
  switch (kind) {
    case SamplerKind::ddpm:
      return "ddpm";
    case SamplerKind::ddim:
      return "ddim";
    case SamplerKind::euler:
      return "euler";
    case SamplerKind::heun:
      return "heun";
    case SamplerKind::dpmpp2m:
      break;
  }
  return "dpm++2m";
}

std::string_view to_string(Spacing spacing) {
  if (spacing == Spacing::karras) return "karras";
  if (spacing == Spacing::linear) return "linear";
  return spacing == Spacing::trailing ? "trailing" : "leading";
}

std::string_view to_string(Clipping clipping) {
  if (clipping == Clipping::none) return "none";
  return clipping == Clipping::clip ? "clip" : "dynamic";
}

std::optional<SamplerKind> parse_sampler_kind(std::string_view text) {
  using enum SamplerKind;
  return parse_name({ddpm, ddim, euler, heun, dpmpp2m}, text);
}

std::optional<Spacing> parse_spacing(std::string_view text) {
  using enum Spacing;
  return parse_name({karras, linear, trailing, leading}, text);
}

std::optional<Clipping> parse_clipping(std::string_view text) {
  using enum Clipping;
  return parse_name({none, clip, dynamic}, text);
}

SamplerConfig default_sampler(const DiffusionConfig& diffusion, std::optional<SamplerKind> kind) {
  const bool edm = diffusion.process == Process::edm;
  SamplerConfig config;
  config.kind = kind.value_or(edm ? SamplerKind::heun : SamplerKind::ddpm);
  const bool ancestral = config.kind == SamplerKind::ddpm || config.kind == SamplerKind::ddim;
  config.spacing = edm || !ancestral ? Spacing::karras : Spacing::linear;
  config.clipping = edm ? Clipping::none : Clipping::clip;
  config.steps = std::min<int64_t>(ancestral ? 100 : 18, diffusion.timesteps);
  return config;
}

void check(const SamplerConfig& config, const DiffusionConfig& diffusion) {
  check(diffusion);
  if (config.steps < 1 || config.steps > diffusion.timesteps) {
    wrong_usage(fmt::format("{} sampling steps of a model with {} timesteps", config.steps, diffusion.timesteps),
                fmt::format("choose 1 to {} steps", diffusion.timesteps));
  }
  if (config.batch < 1) wrong_usage(fmt::format("a batch of {}", config.batch), "choose at least 1");
  check_noise(config);
  check_spacing(config, diffusion);
  if (!(config.percentile > 0 && config.percentile <= 1)) {
    wrong_usage(fmt::format("the percentile is {}", config.percentile), "choose above 0 and up to 1, such as 0.995");
  }
  if (!(config.guidance >= 0 && config.guidance <= 1e3)) {
    wrong_usage(fmt::format("the guidance is {}", config.guidance), "choose 0 to 1000; 1 is none");
  }
  if (config.guidance != 1 && diffusion.label_dropout == 0) {
    wrong_usage("guidance of a model that was not trained to do without labels",
                "leave guidance out, or train with label_dropout");
  }
}

int64_t evaluations(SamplerKind kind, int64_t steps) { return kind == SamplerKind::heun ? 2 * steps - 1 : steps; }

}  // namespace difuse::models
