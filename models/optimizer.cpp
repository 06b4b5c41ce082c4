#include "models/optimizer.h"

#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "ir/error.h"

namespace difuse::models {
namespace {

using ir::DType;
using ir::Value;

/// 1 - beta^t = -expm1(t log(beta)): keeps its digits where beta^t is close to 1.
Value bias_correction(ir::Builder& build, double beta, Value t) {
  if (beta == 0) return build.constant(1.0);
  return build.neg(build.expm1(build.mul(t, std::log(beta))));
}

Value learning_rate(ir::Builder& build, const OptimizerConfig& config, Value step) {
  Value rate = build.constant(config.learning_rate);
  if (config.warmup > 0) {
    const Value share = build.mul(build.add(step, 1.0), 1.0 / static_cast<double>(config.warmup));
    rate = build.mul(rate, build.min(share, 1.0));
  }
  if (config.schedule == LearningRateSchedule::cosine) {
    const Value progress = build.min(build.mul(step, 1.0 / static_cast<double>(config.total_steps)), 1.0);
    rate = build.mul(rate, build.mul(build.add(build.cos(build.mul(progress, std::numbers::pi)), 1.0), 0.5));
  }
  return rate;
}

}  // namespace

std::string_view to_string(LearningRateSchedule schedule) {
  return schedule == LearningRateSchedule::constant ? "constant" : "cosine";
}

std::optional<LearningRateSchedule> parse_learning_rate_schedule(std::string_view text) {
  for (LearningRateSchedule s : {LearningRateSchedule::constant, LearningRateSchedule::cosine}) {
    if (to_string(s) == text) return s;
  }
  return std::nullopt;
}

void check(const OptimizerConfig& c) {
  if (!(c.learning_rate >= 0 && std::isfinite(c.learning_rate))) {
    wrong_usage(fmt::format("the learning rate is {}", c.learning_rate), "choose a value such as 1e-4");
  }
  // The graph computes in f32.
  const auto rate = static_cast<float>(c.learning_rate);
  if (!std::isfinite(rate) || (rate == 0 && c.learning_rate > 0)) {
    wrong_usage(fmt::format("the learning rate (--lr) is {}, which is {} in f32", c.learning_rate,
                            rate == 0 ? "0" : "infinite"),
                "choose a value such as 1e-4");
  }
  for (double beta : {c.beta1, c.beta2}) {
    if (!(beta >= 0 && beta < 1)) wrong_usage(fmt::format("an Adam beta is {}", beta), "choose 0 to below 1");
  }
  if (!(c.eps > 0 && std::isfinite(c.eps)))
    wrong_usage(fmt::format("Adam's eps is {}", c.eps), "choose a value such as 1e-8");
  if (!(c.weight_decay >= 0 && std::isfinite(c.weight_decay))) {
    wrong_usage(fmt::format("the weight decay is {}", c.weight_decay), "choose 0 or a value such as 0.01");
  }
  if (!(c.clip_norm >= 0 && std::isfinite(c.clip_norm))) {
    wrong_usage(fmt::format("the clipping norm is {}", c.clip_norm), "choose a value such as 1, or 0 for no clipping");
  }
  if (c.warmup < 0) wrong_usage(fmt::format("{} steps of warm-up", c.warmup), "choose 0 or more");
  if (c.schedule == LearningRateSchedule::cosine && c.total_steps < 1) {
    wrong_usage("a cosine learning rate without a number of steps", "say how many steps the run has");
  }
  for (double decay : c.ema_decays) {
    if (!(decay >= 0 && decay < 1)) wrong_usage(fmt::format("an EMA decay is {}", decay), "choose 0 to below 1");
  }
}

std::string ema_state(size_t i) { return i == 0 ? "ema" : fmt::format("ema_{}", i); }

OptimizerReport add_optimizer(ir::Builder& build, const OptimizerConfig& c, Value params, Value gradient, Value step,
                              Value apply) {
  check(c);
  ir::Graph& graph = build.graph();
  const ir::Type type = build.type(params);
  auto spread = [&](Value scalar) { return build.broadcast_scalar(scalar, type.shape); };
  const Value done = build.cast(step, DType::f32);

  OptimizerReport report;
  report.gradient_norm = build.sqrt(build.sum_all(build.square(gradient)));
  report.learning_rate = learning_rate(build, c, done);
  const Value broken = build.sub(1.0, build.is_finite(report.gradient_norm));
  report.nonfinite = build.max(build.sum_all(build.sub(1.0, build.is_finite(gradient))), broken);
  Value good = build.less_equal(report.nonfinite, 0.0);
  if (apply.valid()) good = build.mul(good, apply);
  const Value move = spread(good);
  auto update = [&](const std::string& state, Value from, Value to) {
    graph.set_update(state, build.select(move, to, from));
  };

  Value g = gradient;
  if (c.clip_norm > 0) {
    const Value factor = build.min(build.div(c.clip_norm, build.add(report.gradient_norm, 1e-6)), 1.0);
    g = build.mul(g, spread(factor));
  }
  const Value m = build.state("adam_m", type), v = build.state("adam_v", type);
  const Value new_m = build.add(build.mul(m, c.beta1), build.mul(g, 1 - c.beta1));
  const Value new_v = build.add(build.mul(v, c.beta2), build.mul(build.square(g), 1 - c.beta2));

  const Value t = build.add(done, 1.0);
  const Value rate = build.div(report.learning_rate, bias_correction(build, c.beta1, t));
  const Value scale = build.rsqrt(bias_correction(build, c.beta2, t));
  const Value deviation = build.add(build.mul(build.sqrt(new_v), spread(scale)), c.eps);
  Value decayed = params;
  if (c.weight_decay > 0) {
    decayed = build.mul(params, spread(build.sub(1.0, build.mul(report.learning_rate, c.weight_decay))));
  }
  const Value new_params = build.sub(decayed, build.div(build.mul(new_m, spread(rate)), deviation));

  update(graph.node(params).as<ir::LeafAttrs>().name, params, new_params);
  update("adam_m", m, new_m);
  update("adam_v", v, new_v);
  for (size_t i = 0; i < c.ema_decays.size(); ++i) {
    // 1 - decay, from the constants: 1 - 0.9999 in f32 would have lost four digits. 1 - (1+n)/(10+n) = 9/(10+n).
    const Value gain = build.max(build.div(9.0, build.add(done, 10.0)), 1 - c.ema_decays[i]);
    const Value ema = build.state(ema_state(i), type);
    update(ema_state(i), ema, build.add(ema, build.mul(build.sub(new_params, ema), spread(gain))));
  }
  return report;
}

}  // namespace difuse::models
