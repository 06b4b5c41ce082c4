#include "models/diffusion/diffusion_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/error.h"
#include "models/diffusion/names.h"

namespace difuse::models {
namespace {

void check_timesteps(const DiffusionConfig& config) {
  const bool linear = config.process == Process::ddpm && config.schedule != NoiseSchedule::cosine;
  const double start = config.beta_start, end = config.beta_end;
  if (!(start > 0 && start <= end && end <= 1)) {
    wrong_usage(fmt::format("beta from {} to {}", start, end),
                "choose 0 < beta_start <= beta_end <= 1, such as 1e-4 to 0.02");
  }
  // 1000 beta_end / timesteps is the last beta, which must stay below 1.
  const int64_t least = linear ? std::max<int64_t>(2, static_cast<int64_t>(1000 * end) + 1) : 1, most = 100000;
  if (config.timesteps >= least && config.timesteps <= most) return;
  wrong_usage(config.process == Process::edm ? fmt::format("{} timesteps", config.timesteps)
                                             : fmt::format("{} timesteps with the {} noise schedule", config.timesteps,
                                                           to_string(config.schedule)),
              fmt::format("choose {} to {} timesteps", least, most));
}

void check_edm(const DiffusionConfig& config) {
  const DiffusionConfig fixed;
  const auto fits = [](const char* field, auto value, auto wanted) {
    if (value == wanted) return;
    wrong_usage(fmt::format("{} = {} has no meaning in the edm process, which has a prediction and a weight of its own",
                            field, value),
                fmt::format("leave {} out, or choose the ddpm process", field));
  };
  fits("prediction", to_string(config.prediction), to_string(fixed.prediction));
  fits("rescale_timesteps", config.rescale_timesteps, fixed.rescale_timesteps);
  fits("unit_timesteps", config.unit_timesteps, fixed.unit_timesteps);
  fits("rescale_learned_sigmas", config.rescale_learned_sigmas, fixed.rescale_learned_sigmas);
  fits("min_snr_gamma", config.min_snr_gamma, fixed.min_snr_gamma);
  if (!(config.sigma_data > 0 && config.sigma_data <= 1e3)) {
    wrong_usage(fmt::format("sigma_data is {}", config.sigma_data), "choose a number above 0, such as 0.5");
  }
  // Beyond, the noise would leave what f32 holds.
  if (!(config.p_mean >= -10 && config.p_mean <= 10)) {
    wrong_usage(fmt::format("p_mean is {}", config.p_mean), "choose -10 to 10");
  }
  if (!(config.p_std > 0 && config.p_std <= 5)) wrong_usage(fmt::format("p_std is {}", config.p_std), "choose up to 5");
}

}  // namespace

std::string_view to_string(Process process) { return process == Process::ddpm ? "ddpm" : "edm"; }

std::string_view to_string(NoiseSchedule schedule) {
  if (schedule == NoiseSchedule::linear) return "linear";
  return schedule == NoiseSchedule::cosine ? "cosine" : "scaled_linear";
}

std::string_view to_string(Prediction prediction) {
  if (prediction == Prediction::eps) return "eps";
  return prediction == Prediction::x0 ? "x0" : "v";
}

std::optional<Process> parse_process(std::string_view text) { return parse_name({Process::ddpm, Process::edm}, text); }

std::optional<NoiseSchedule> parse_noise_schedule(std::string_view text) {
  return parse_name({NoiseSchedule::linear, NoiseSchedule::scaled_linear, NoiseSchedule::cosine}, text);
}

std::optional<Prediction> parse_prediction(std::string_view text) {
  return parse_name({Prediction::eps, Prediction::x0, Prediction::v}, text);
}

double time_factor(const DiffusionConfig& config) {
  const auto timesteps = static_cast<double>(config.timesteps);
  if (config.unit_timesteps) return 1 / timesteps;
  return config.rescale_timesteps ? 1000 / timesteps : 1;
}

DiffusionConfig with_process(const DiffusionConfig& config, Process process) {
  if (config.process == process) return config;
  DiffusionConfig other{config.schedule, config.timesteps, process};
  other.label_dropout = config.label_dropout;
  return other;
}

void check(const DiffusionConfig& config) {
  check_timesteps(config);
  if (config.process == Process::edm) check_edm(config);
  if (config.rescale_timesteps && config.unit_timesteps) {
    wrong_usage("rescale_timesteps and unit_timesteps: the network sees one or the other", "leave one of them out");
  }
  if (!(config.min_snr_gamma >= 0)) {
    wrong_usage(fmt::format("min_snr_gamma is {}", config.min_snr_gamma),
                "choose 0 for weight 1, or a bound such as 5");
  }
  if (!(config.label_dropout >= 0 && config.label_dropout < 1)) {
    wrong_usage(fmt::format("label_dropout is {}", config.label_dropout),
                "choose 0 or more and less than 1, such as 0.1");
  }
}

void check_learned_variance(const DiffusionConfig& config) {
  check(config);
  if (config.process == Process::edm) {
    wrong_usage("a learned variance (learn_sigma) in the edm process, which has none",
                "set learn_sigma to false, or choose the ddpm process");
  }
  if (config.timesteps < 2) {
    wrong_usage("a learned variance with 1 timestep: its only step adds no noise",
                "choose 2 or more timesteps, or set learn_sigma to false");
  }
}

void check_model(const DiffusionConfig& config, int64_t num_classes, bool learn_sigma) {
  check(config);
  if (config.label_dropout > 0 && num_classes < 2) {
    wrong_usage(fmt::format("label_dropout = {} of a model with {} classes: it needs one for no label and one or more "
                            "beside it",
                            config.label_dropout, num_classes),
                "give the model classes, one more than the data has, or leave label_dropout out");
  }
  if (learn_sigma) check_learned_variance(config);
}

}  // namespace difuse::models
