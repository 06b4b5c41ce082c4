#include "models/diffusion/learned_variance.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/diffusion/ddpm.h"
#include "models/diffusion/objective.h"

namespace difuse::models {
namespace {

using ir::Value;

constexpr double kLeastLikelihood = 1e-12;
constexpr double kLastValue = 0.999;  ///< Beyond, x0 is the darkest or the brightest value: its bin has no other end.

/// -log of the likelihood of the bin around x0, given the ends of the bin measured from the model's mean, in standard
/// deviations of the model: nats.
Value negative_log_likelihood(ir::Builder& build, Value x0, Value low, Value high) {
  // (1 + tanh(y)) / 2 = s(2y), s being the sigmoid, which keeps its digits in both tails; and of the difference,
  // s(a) - s(b) = s(a) s(-b) (1 - exp(b - a)).
  auto logit = [&](Value z) {
    const Value cubed = build.mul(build.square(z), z);
    return build.mul(build.add(z, build.mul(cubed, 0.044715)), 2 * std::sqrt(2 / std::numbers::pi));
  };
  const Value a = logit(high), b = logit(low);
  const Value below_high = build.sigmoid(a), above_low = build.sigmoid(build.neg(b));
  const Value within = build.mul(build.mul(below_high, above_low), build.neg(build.expm1(build.sub(b, a))));
  const Value likelihood = build.select(build.less(x0, -kLastValue), below_high,
                                        build.select(build.less(kLastValue, x0), above_low, within));
  return build.neg(build.log(build.max(likelihood, kLeastLikelihood)));
}

}  // namespace

LearnedVarianceTables learned_variance_tables(const DiffusionConfig& diffusion) {
  check_learned_variance(diffusion);
  const std::vector<double> beta = betas(diffusion), bar = alpha_bars(diffusion);
  LearnedVarianceTables tables;
  for (size_t t = 0; t < beta.size(); ++t) {
    const size_t at = std::max<size_t>(t, 1);
    const double variance = beta[at] * (1 - bar[at - 1]) / (1 - bar[at]);
    tables.log_range.push_back(std::log(beta[t] / variance));
    tables.distance.push_back(beta[t] / std::sqrt((1 - beta[t]) * (1 - bar[t]) * variance));
    if (t == 0) tables.half_bin = 1 / 255.0 / std::sqrt(variance);
  }
  return tables;
}

VariationalBound variational_bound(ir::Builder& build, const DiffusionConfig& diffusion, Value x0, Value error,
                                   Value output, Value t) {
  const LearnedVarianceTables tables = learned_variance_tables(diffusion);
  const ir::Shape shape = build.shape(error);
  auto at_t = [&](const std::vector<double>& table) { return per_timestep(build, table, t, shape); };
  const Value distance = build.mul(error, at_t(tables.distance));
  const Value share = build.mul(build.add(output, 1.0), 0.5);
  const Value excess = build.mul(share, at_t(tables.log_range));

  // KL of two Gaussians: (excess - 1 + exp(-excess) + distance^2 exp(-excess)) / 2.
  const Value shrink = build.neg(excess);
  const Value spread = build.add(excess, build.expm1(shrink));
  const Value divergence = build.mul(build.add(spread, build.mul(build.square(distance), build.exp(shrink))), 0.5);

  // Pixels are what they are, so at t = 0 the posterior's mean is x0, and x0 - mean is `distance` too.
  const Value inverse_deviation = build.exp(build.mul(shrink, 0.5));
  const Value low = build.mul(build.sub(distance, tables.half_bin), inverse_deviation);
  const Value high = build.mul(build.add(distance, tables.half_bin), inverse_deviation);
  const Value likelihood = negative_log_likelihood(build, x0, low, high);

  const Value is_first = build.broadcast(build.equal(t, 0.0), shape, {0});
  return {build.mul(build.select(is_first, likelihood, divergence), 1 / std::numbers::ln2), distance};
}

}  // namespace difuse::models
