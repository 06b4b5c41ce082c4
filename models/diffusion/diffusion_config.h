// What a model is trained to undo, and how it says what it found.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace difuse::models {

enum class Process : uint8_t {
  ddpm,  ///< Timesteps of a noise schedule (Ho, Jain and Abbeel, 2020).
  edm,   ///< A continuous noise level and a preconditioned network (Karras et al., 2022, arXiv 2206.00364).
};

enum class NoiseSchedule : uint8_t {
  linear,         ///< beta rises evenly over 1000 steps, from 1e-4 to 0.02 (Ho et al.); scaled by 1000 / timesteps.
  scaled_linear,  ///< The same of the square root of beta (Rombach et al., "Latent Diffusion", 2022).
  cosine,  ///< alpha_bar(s) = cos^2((s + 0.008) / 1.008 * pi / 2), beta at most 0.999 (Nichol and Dhariwal, 2021).
};

/// What the network of a ddpm process answers, x_t being a x_0 + s noise.
enum class Prediction : uint8_t {
  eps,  ///< The noise.
  x0,   ///< The image.
  v,    ///< a noise - s x_0 (Salimans and Ho, "Progressive Distillation", 2022).
};

std::string_view to_string(Process process);
std::string_view to_string(NoiseSchedule schedule);
std::string_view to_string(Prediction prediction);
std::optional<Process> parse_process(std::string_view text);
std::optional<NoiseSchedule> parse_noise_schedule(std::string_view text);
std::optional<Prediction> parse_prediction(std::string_view text);

struct DiffusionConfig {
  NoiseSchedule schedule = NoiseSchedule::linear;  ///< ddpm
  int64_t timesteps = 1000;                        ///< ddpm; in any process, the most steps that sampling may take.
  Process process = Process::ddpm;
  double beta_start = 1e-4, beta_end = 0.02;  ///< ddpm: ends of the linear schedules, as of 1000 timesteps.

  // ddpm alone; edm refuses other values than these.
  Prediction prediction = Prediction::eps;
  bool rescale_timesteps = false;  ///< The network sees t * 1000 / timesteps instead of t.
  /// It sees t / timesteps, for one that takes the time as it is (UNetFamily::strided). Not beside rescale_timesteps.
  bool unit_timesteps = false;
  bool rescale_learned_sigmas = false;  ///< A learned variance's bound counts timesteps / 1000 times.
  double min_snr_gamma = 0;  ///< Bound of the loss weight (Hang et al., "Min-SNR Weighting", 2023); 0: weight 1.

  // edm alone; the values are the paper's.
  double sigma_data = 0.5;            ///< Standard deviation of the images.
  double p_mean = -1.2, p_std = 1.2;  ///< Of the logarithm of the noise level in training.

  /// Share of the training images whose label is replaced by the last class, which then stands for no label at all and
  /// which no image of the data may have: what classifier-free guidance needs (Ho and Salimans, 2022).
  double label_dropout = 0;

  bool operator==(const DiffusionConfig&) const = default;
  template <class Visitor>
  void visit(Visitor&& v) {
    v("schedule", schedule), v("timesteps", timesteps), v("process", process), v("prediction", prediction);
    v("beta_start", beta_start), v("beta_end", beta_end);
    v("rescale_timesteps", rescale_timesteps), v("rescale_learned_sigmas", rescale_learned_sigmas);
    v("min_snr_gamma", min_snr_gamma), v("sigma_data", sigma_data), v("p_mean", p_mean), v("p_std", p_std);
    v("label_dropout", label_dropout), v("unit_timesteps", unit_timesteps);
  }
  /// Files of before there was anything but DDPM leave these out, and mean the default.
  static constexpr bool may_be_missing(std::string_view name) { return name != "schedule" && name != "timesteps"; }
};

/// What the network sees of timestep t is t times this.
double time_factor(const DiffusionConfig& config);

/// What remains of a configuration in that process: of another one, its own fields would be refused there.
DiffusionConfig with_process(const DiffusionConfig& config, Process process);

/// Throws Error (wrong usage) with a choice that works.
void check(const DiffusionConfig& config);
/// The same for a process with a learned variance.
void check_learned_variance(const DiffusionConfig& config);
/// The same for a model with so many classes, and with or without a learned variance.
void check_model(const DiffusionConfig& config, int64_t num_classes, bool learn_sigma);

/// Classes that images can have: all of the model's but the one that stands for no label.
inline int64_t labelled_classes(const DiffusionConfig& config, int64_t num_classes) {
  return config.label_dropout > 0 ? num_classes - 1 : num_classes;
}

}  // namespace difuse::models
