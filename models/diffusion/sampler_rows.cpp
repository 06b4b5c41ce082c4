#include "models/diffusion/sampler_rows.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace difuse::models {
namespace {

/// Decreasing, both ends included.
std::vector<double> karras_sigmas(double most, double least, double rho, int64_t steps) {
  std::vector<double> sigmas = {most};
  const double high = std::pow(most, 1 / rho), low = std::pow(least, 1 / rho);
  for (int64_t i = 1; i < steps; ++i) {
    const double share = static_cast<double>(i) / static_cast<double>(steps - 1);
    sigmas.push_back(i + 1 == steps ? least : std::pow(high + share * (low - high), rho));
  }
  return sigmas;
}

/// Decreasing.
std::vector<int64_t> visited_timesteps(Spacing spacing, int64_t timesteps, int64_t steps) {
  std::vector<int64_t> visited;
  const auto all = static_cast<double>(timesteps), count = static_cast<double>(steps);
  for (int64_t i = 0; i < steps; ++i) {
    const auto at = static_cast<double>(i);
    if (spacing == Spacing::trailing) {
      visited.push_back(std::llrint(all - at * all / count) - 1);
    } else if (spacing == Spacing::leading) {
      visited.push_back((steps - 1 - i) * (timesteps / steps));
    } else {
      visited.push_back(steps == 1 ? timesteps - 1 : std::llrint((count - 1 - at) * ((all - 1) / (count - 1))));
    }
  }
  return visited;
}

/// What algorithm 2 of Karras et al. raises the noise level to before a step.
double churned(double sigma, const SamplerConfig& config, const DiffusionConfig& diffusion, double most) {
  if (config.churn == 0 || sigma < config.churn_min || sigma > config.churn_max) return sigma;
  const double gamma = std::min(config.churn / static_cast<double>(config.steps), std::sqrt(2.0) - 1);
  const double raised = sigma + gamma * sigma;
  return diffusion.process == Process::edm ? raised : std::max(sigma, std::min(raised, most));
}

/// The rows of one sampler after another, a step at a time.
class Rows {
 public:
  Rows(const SamplerConfig& config, const DiffusionConfig& diffusion)
      : config_(config), diffusion_(diffusion), levels_(diffusion) {}

  std::vector<SamplerRow> make() {
    const std::vector<double> sigmas = visited_sigmas(config_, diffusion_);
    for (size_t i = 0; i < sigmas.size(); ++i) {
      const double next = i + 1 < sigmas.size() ? sigmas[i + 1] : 0;
      switch (config_.kind) {
        case SamplerKind::ddpm:
          ancestral(sigmas[i], next);
          break;
        case SamplerKind::ddim:
          implicit(sigmas[i], next);
          break;
        case SamplerKind::euler:
          euler(sigmas[i], next);
          break;
        case SamplerKind::heun:
          heun(sigmas[i], next);
          break;
        case SamplerKind::dpmpp2m:
          multistep(i > 0 ? std::optional(sigmas[i - 1]) : std::nullopt, sigmas[i], next);
          break;
      }
    }
    rows_.front().start = levels_.start(sigmas.front());
    return std::move(rows_);
  }

 private:
  SamplerRow& add(double sigma, double next) {
    const NoiseLevel level = levels_.at(sigma);
    SamplerRow row{.sigma = sigma, .next_sigma = next};
    row.time = level.time;
    row.in = level.in;
    row.skip = level.skip;
    row.out = level.out;
    row.guidance = config_.guidance;
    rows_.push_back(row);
    return rows_.back();
  }

  /// Along the straight line from x through x0.
  SamplerRow& add_line(double sigma, double next) {
    SamplerRow& row = add(sigma, next);
    row.of_x = next / sigma;
    row.of_x0 = 1 - row.of_x;
    return row;
  }

  /// Of q(x' | x, x_0).
  static double posterior_variance(double sigma, double next) {
    const double share = next / sigma;
    return (sigma * sigma - next * next) * share * share;
  }
  /// beta of the two noise levels, in the coordinates of x'.
  double beta(double sigma, double next) const {
    const double ratio = levels_.signal(sigma) / levels_.signal(next);
    return ratio * ratio * (sigma * sigma - next * next);
  }

  void ancestral(double sigma, double next) {
    SamplerRow& row = add(sigma, next);
    row.of_x = next * next / (sigma * sigma);
    row.of_x0 = 1 - row.of_x;
    const double most = beta(sigma, next), least = posterior_variance(sigma, next);
    row.noise = next == 0 ? 0 : std::sqrt(config_.large_variance ? most : least);
    row.most_log_variance = std::log(most);
    // The last step adds no noise: any range will do that keeps a learned variance finite.
    row.least_log_variance = next == 0 ? row.most_log_variance : std::log(least);
  }

  void implicit(double sigma, double next) {
    SamplerRow& row = add(sigma, next);
    row.noise = config_.eta * std::sqrt(posterior_variance(sigma, next));
    row.of_x = std::sqrt(std::max(0.0, next * next - row.noise * row.noise)) / sigma;
    row.of_x0 = 1 - row.of_x;
  }

  double euler(double sigma, double next) {
    const double raised = churned(sigma, config_, diffusion_, levels_.most());
    SamplerRow& row = add_line(raised, next);
    row.churn = config_.churn_noise * std::sqrt(raised * raised - sigma * sigma);
    return raised;
  }

  void heun(double sigma, double next) {
    const double raised = euler(sigma, next);
    if (next == 0) return;
    // x_before + (next - raised) (slope before + slope) / 2, a slope being (x - x0) / sigma.
    SamplerRow& row = add(next, next);
    const double half = (next - raised) / 2;
    row.of_x_before = 1 + half / raised;
    row.of_x0_before = -half / raised;
    row.of_x = half / next;
    row.of_x0 = -half / next;
  }

  void multistep(std::optional<double> before, double sigma, double next) {
    SamplerRow& row = add_line(sigma, next);
    if (!before || next == 0) return;
    // x0 drawn on linearly in log sigma to the middle of the step.
    const double ahead = std::log(sigma / next) / std::log(*before / sigma) / 2;
    row.of_x0_before = -ahead * row.of_x0;
    row.of_x0 += ahead * row.of_x0;
  }

  const SamplerConfig& config_;
  const DiffusionConfig& diffusion_;
  const NoiseLevels levels_;
  std::vector<SamplerRow> rows_;
};

}  // namespace

std::vector<double> visited_sigmas(const SamplerConfig& config, const DiffusionConfig& diffusion) {
  check(config, diffusion);
  const NoiseLevels levels(diffusion);
  const double least = config.sigma_min > 0 ? config.sigma_min : levels.least();
  const double most = config.sigma_max > 0 ? config.sigma_max : levels.most();
  if (config.spacing == Spacing::karras) return karras_sigmas(most, least, config.rho, config.steps);
  if (diffusion.process == Process::edm) return karras_sigmas(most, least, 1, config.steps);
  std::vector<double> sigmas;
  for (const int64_t t : visited_timesteps(config.spacing, diffusion.timesteps, config.steps)) {
    sigmas.push_back(levels.sigmas()[static_cast<size_t>(t)]);
  }
  return sigmas;
}

std::vector<SamplerRow> sampler_rows(const SamplerConfig& config, const DiffusionConfig& diffusion) {
  check(config, diffusion);
  return Rows(config, diffusion).make();
}

int64_t table_rows(SamplerKind kind, const DiffusionConfig& diffusion) {
  return evaluations(kind, diffusion.timesteps);
}

std::vector<float> sampler_table(const std::vector<SamplerRow>& rows, SamplerKind kind,
                                 const DiffusionConfig& diffusion) {
  std::vector<float> table;
  for (const SamplerRow& row : rows) {
    for (const auto column : kColumns) table.push_back(static_cast<float>(row.*column));
  }
  table.resize(static_cast<size_t>(table_rows(kind, diffusion)) * kColumns.size());
  return table;
}

}  // namespace difuse::models
