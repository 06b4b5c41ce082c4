#include "models/cli/sampler_flags.h"

#include <fmt/format.h>

#include <limits>

#include "ir/error.h"
#include "models/cli/flags.h"

namespace difuse::models {

std::vector<std::string> sampler_names() { return {"ddpm", "ddim", "euler", "heun", "dpm++2m"}; }

void SamplerFlags::add(CLI::App& app) {
  SamplerChoice& c = choice_;
  add_choice(app, "--sampler", kind_, sampler_names(), "Sampler", "ddpm; heun of an edm model");
  add_whole(app, "--steps", c.steps, {1, 1 << 20}, "Steps of the sampler", "100 of ddpm and ddim, 18 of the others");
  add_choice(app, "--spacing", spacing_, {"karras", "linear", "trailing", "leading"}, "Which noise levels are visited",
             "linear for ddpm and ddim, karras for the others and edm");
  add_real(app, "--rho", c.rho, {.least = 0, .most = 100, .open = true}, "karras: exponent of the spacing", "7");
  add_real(app, "--sigma-min", c.sigma_min, {.least = 0, .open = true}, "karras, or edm: the last noise level",
           "0.002 in edm, that of timestep 0 in ddpm");
  add_real(app, "--sigma-max", c.sigma_max, {.least = 0, .open = true}, "karras, or edm: the first noise level",
           "80 in edm, that of the last timestep in ddpm");
  add_real(app, "--eta", c.eta, {0, 1}, "ddim: share of the ancestral noise", "0");
  add_choice(app, "--variance", variance_, {"small", "large"},
             "ddpm: noise of a step, with the variance of the posterior or with beta", "small");
  add_real(app, "--churn", c.churn, {0}, "euler, heun: S_churn, noise added in all", "0");
  add_real(app, "--churn-min", c.churn_min, {0}, "With --churn: the least sigma to add noise at", "0");
  add_real(app, "--churn-max", c.churn_max, {0}, "With --churn: the largest sigma to add noise at", "any");
  add_real(app, "--churn-noise", c.churn_noise, {0}, "With --churn: S_noise, its standard deviation", "1");
  add_real(app, "--guidance", c.guidance, {0, 1e3},
           "Classifier-free guidance, of a model trained with --label-dropout; 1: none", "1");
  add_choice(app, "--clip", clipping_, {"none", "clip", "dynamic"},
             "What is done to the image that the network sees in the noise: nothing, cut to [-1, 1], or dynamic "
             "thresholding",
             "clip; none of an edm model");
  add_real(app, "--percentile", c.percentile, {.least = 0, .most = 1, .open = true},
           "--clip dynamic: share of the pixels that are not cut off", "0.995");
  add_whole(app, "--batch", c.batch, {1, 1 << 16}, "Images at a time; no bit depends on it", "16; 64 on a GPU");
}

SamplerChoice SamplerFlags::choice() const {
  SamplerChoice choice = choice_;
  if (kind_) choice.kind = parse_sampler_kind(*kind_);
  if (spacing_) choice.spacing = parse_spacing(*spacing_);
  if (clipping_) choice.clipping = parse_clipping(*clipping_);
  if (variance_) choice.large_variance = *variance_ == "large";
  return choice;
}

CLI::Option* add_seeds(CLI::App& app, std::optional<std::string>& to, const std::string& fallback) {
  return add_text(app, "--seeds", to, "I[,I|,I-J...]",
                  "Images by number: image I is the same in every list, batch and run of one --seed", fallback);
}

std::vector<int32_t> parse_seeds(const std::string& text, size_t most) {
  constexpr WholeRange kNumbers{0, std::numeric_limits<int32_t>::max()};
  std::vector<int32_t> seeds;
  for (const std::string& part : CLI::detail::split(text, ',')) {
    const size_t dash = part.find('-', 1);
    const int64_t first = parse_whole("--seeds", part.substr(0, dash), kNumbers);
    const int64_t last = dash == std::string::npos ? first : parse_whole("--seeds", part.substr(dash + 1), kNumbers);
    if (last < first) {
      throw Error(fmt::format("--seeds '{}' ends before it begins", part), "give ranges as FIRST-LAST",
                  ExitCode::wrong_usage);
    }
    if (last - first >= static_cast<int64_t>(most - seeds.size())) {
      throw Error(fmt::format("--seeds '{}' is more than {} images", text, most), "give fewer", ExitCode::wrong_usage);
    }
    for (int64_t seed = first; seed <= last; ++seed) seeds.push_back(static_cast<int32_t>(seed));
  }
  return seeds;
}

}  // namespace difuse::models
