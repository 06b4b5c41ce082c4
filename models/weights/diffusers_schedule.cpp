#include "models/weights/diffusers_schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "models/diffusion/sampler_config.h"
#include "models/weights/json_keys.h"

namespace difuse::models {

namespace fs = std::filesystem;

namespace {

/// Schedulers of one noise schedule, in betas; they differ in how they draw.
constexpr std::array<std::string_view, 19> kOfBetas = {"DDPM",
                                                       "DDPMParallel",
                                                       "DDIM",
                                                       "DDIMParallel",
                                                       "DDIMInverse",
                                                       "PNDM",
                                                       "LMSDiscrete",
                                                       "EulerDiscrete",
                                                       "EulerAncestralDiscrete",
                                                       "HeunDiscrete",
                                                       "KDPM2Discrete",
                                                       "DEISMultistep",
                                                       "UniPCMultistep",
                                                       "DPMSolverMultistep",
                                                       "DPMSolverMultistepInverse",
                                                       "DPMSolverSDE",
                                                       "SASolver",
                                                       "DPMSolverSinglestep",
                                                       "KDPM2AncestralDiscrete"};
constexpr std::array<std::string_view, 2> kEdm = {"EDMEuler", "EDMDPMSolverMultistep"};

/// Those that draw as a sampler here does.
std::optional<SamplerKind> sampler_of(const JsonKeys& keys, std::string_view scheduler) {
  if (scheduler == "DDPM" || scheduler == "DDPMParallel") return SamplerKind::ddpm;
  if (scheduler == "DDIM" || scheduler == "DDIMParallel") return SamplerKind::ddim;
  if (scheduler == "EulerDiscrete" || scheduler == "EDMEuler") return SamplerKind::euler;
  if (scheduler == "HeunDiscrete") return SamplerKind::heun;
  const bool multistep = scheduler == "DPMSolverMultistep" || scheduler == "EDMDPMSolverMultistep";
  const bool second = keys.get<int64_t>("solver_order", 2) == 2 &&
                      keys.get<std::string>("algorithm_type", "dpmsolver++") == "dpmsolver++" &&
                      keys.get<std::string>("solver_type", "midpoint") == "midpoint";
  return multistep && second ? std::optional(SamplerKind::dpmpp2m) : std::nullopt;
}

/// The noise levels that it visits; none where no spacing here has them.
std::optional<Spacing> spacing_of(const JsonKeys& keys, SamplerKind kind, Process process) {
  if (process == Process::edm) {
    const bool karras = keys.get<std::string>("sigma_schedule", "karras") == "karras";
    return karras ? std::optional(Spacing::karras) : std::nullopt;
  }
  for (const char* key : {"use_exponential_sigmas", "use_beta_sigmas", "use_lu_lambdas"}) {
    if (keys.get<bool>(key, false)) return std::nullopt;
  }
  if (keys.get<bool>("use_karras_sigmas", false)) return Spacing::karras;
  const bool ancestral = kind == SamplerKind::ddpm || kind == SamplerKind::ddim;
  const std::string spacing = keys.get<std::string>("timestep_spacing", ancestral ? "leading" : "linspace");
  if (spacing == "trailing") return Spacing::trailing;
  if (kind == SamplerKind::dpmpp2m) return std::nullopt;  // Its others end above timestep 0.
  if (spacing == "leading" && keys.get<int64_t>("steps_offset", 0) == 0) return Spacing::leading;
  return spacing == "linspace" ? std::optional(Spacing::linear) : std::nullopt;
}

/// Keys of how it draws that are neither here nor at their usual values.
std::vector<std::string> keys_not_taken(const JsonKeys& keys, bool with_spacing) {
  static const std::set<std::string, std::less<>> kTaken = {"beta_start",          "beta_end",
                                                            "beta_schedule",       "trained_betas",
                                                            "num_train_timesteps", "prediction_type",
                                                            "sigma_data",          "sigma_min",
                                                            "sigma_max",           "rho",
                                                            "variance_type",       "clip_sample",
                                                            "clip_sample_range",   "thresholding",
                                                            "sample_max_value",    "dynamic_thresholding_ratio",
                                                            "label_dropout",       "snr_shift_scale",
                                                            "timestep_type"};
  static const std::set<std::string, std::less<>> kOfSpacing = {
      "timestep_spacing", "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "use_lu_lambdas",
      "sigma_schedule",   "steps_offset"};
  static const nlohmann::json kUsual = {{"set_alpha_to_one", true},
                                        {"lower_order_final", true},
                                        {"solver_order", 2},
                                        {"algorithm_type", "dpmsolver++"},
                                        {"solver_type", "midpoint"},
                                        {"final_sigmas_type", "zero"},
                                        {"steps_offset", 0},
                                        {"interpolation_type", "linear"},
                                        {"flow_shift", 1.0},
                                        {"sigma_schedule", "karras"},
                                        {"lambda_min_clipped", "-Infinity"}};
  std::vector<std::string> names;
  for (const auto& [name, value] : keys.object().items()) {
    if (name.starts_with("_") || kTaken.contains(name) || value.is_null()) continue;
    if (with_spacing && kOfSpacing.contains(name)) continue;
    const nlohmann::json usual = kUsual.value(name, nlohmann::json(false));
    if (value != usual) names.push_back(name);
  }
  return names;
}

void read_betas(const JsonKeys& keys, DiffusionConfig& config) {
  const std::string schedule = keys.get<std::string>("beta_schedule", "linear");
  if (!keys.is_null("trained_betas")) keys.refuse("trained_betas", "is not supported, only null is");
  keys.require<bool>("rescale_betas_zero_snr", false);
  keys.require<bool>("use_flow_sigmas", false);
  keys.require<double>("snr_shift_scale", 1);
  keys.require<std::string>("timestep_type", "discrete");  // The others' network sees log(sigma) / 4.
  config.timesteps = keys.get<int64_t>("num_train_timesteps", 1000);
  if (config.timesteps < 1) keys.refuse("num_train_timesteps", "is no number of timesteps");
  if (schedule == "squaredcos_cap_v2") {
    config.schedule = NoiseSchedule::cosine;
  } else if (schedule == "linear" || schedule == "scaled_linear") {
    if (schedule == "scaled_linear") config.schedule = NoiseSchedule::scaled_linear;
    // There betas are as they stand, here as of 1000 timesteps.
    const double scale = static_cast<double>(config.timesteps) / 1000;
    config.beta_start = scale * keys.get<double>("beta_start", 1e-4);
    config.beta_end = scale * keys.get<double>("beta_end", 0.02);
  } else {
    keys.refuse("beta_schedule", R"(is not supported, only "linear", "scaled_linear" and "squaredcos_cap_v2" are)");
  }
}

Prediction read_prediction(const JsonKeys& keys) {
  const std::string prediction = keys.get<std::string>("prediction_type", "epsilon");
  if (prediction == "epsilon") return Prediction::eps;
  if (prediction == "sample") return Prediction::x0;
  if (prediction != "v_prediction") {
    keys.refuse("prediction_type", R"(is not supported, only "epsilon", "sample" and "v_prediction" are)");
  }
  return Prediction::v;
}

/// How its authors draw, as flags, where that differs from what is done without.
std::vector<std::string> drawing_flags(const JsonKeys& keys, std::string_view scheduler, Process process,
                                       bool learn_sigma) {
  std::vector<std::string> flags;
  const auto give = [&](const char* flag, const auto& value) { flags.push_back(fmt::format("{} {}", flag, value)); };
  const auto give_other = [&](const char* key, const char* flag, double usual) {
    if (const double value = keys.get<double>(key, usual); value != usual) give(flag, value);
  };
  const bool edm = process == Process::edm, ddpm = scheduler.starts_with("DDPM");
  DiffusionConfig of_process;
  of_process.process = process;
  const auto kind = sampler_of(keys, scheduler);
  if (kind && *kind != default_sampler(of_process).kind) give("--sampler", to_string(*kind));
  const auto spacing = kind ? spacing_of(keys, *kind, process) : std::nullopt;
  if (spacing && *spacing != default_sampler(of_process, kind).spacing) give("--spacing", to_string(*spacing));
  if (edm) {
    give_other("sigma_min", "--sigma-min", 0.002);
    give_other("sigma_max", "--sigma-max", 80);
    give_other("rho", "--rho", 7);
  }
  const std::string variance = keys.get<std::string>("variance_type", "fixed_small");
  if (variance == "fixed_large") {
    if (ddpm && !learn_sigma) give("--variance", "large");
  } else if (variance == "learned_range" && !learn_sigma) {
    keys.refuse("variance_type", "is of a UNet that gives a variance, and out_channels is in_channels here",
                R"(set "fixed_small", the default, if the model may be drawn from with that)");
  } else if (variance != "fixed_small" && variance != "fixed_small_log" && variance != "learned_range") {
    keys.refuse("variance_type", R"(is not supported, only "fixed_small", "fixed_large" and "learned_range" are)",
                R"(set "fixed_small", the default, if the model may be drawn from with that)");
  }
  const bool by_default = ddpm || scheduler.starts_with("DDIM");
  const bool clips = (by_default || scheduler == "HeunDiscrete") && keys.get<bool>("clip_sample", by_default);
  std::string clipping = clips ? "clip" : "none";
  if (keys.get<bool>("thresholding", false)) {
    clipping = keys.get<double>("sample_max_value", 1) > 1 ? "dynamic" : "clip";  // Up to 1 they are the same.
  } else if (clips && keys.get<double>("clip_sample_range", 1) != 1) {
    keys.refuse("clip_sample_range", "is not supported, only 1 is",
                R"(set it to 1, or "clip_sample" to false and draw with --clip none)");
  }
  if (clipping != (edm ? "none" : "clip")) give("--clip", clipping);
  if (clipping == "dynamic") give_other("dynamic_thresholding_ratio", "--percentile", 0.995);
  return flags;
}

}  // namespace

fs::path find_diffusers_schedule(const fs::path& unet_folder) {
  constexpr const char* kName = "scheduler_config.json";
  std::error_code ignored;
  if (fs::exists(unet_folder / kName, ignored)) return unet_folder / kName;
  // The user may stand in the folder, or have a link to it or in its place.
  for (const fs::path& whole :
       {fs::absolute(unet_folder, ignored).lexically_normal(), fs::weakly_canonical(unet_folder, ignored)}) {
    const fs::path folder = whole.has_filename() ? whole : whole.parent_path();
    const fs::path beside = folder.parent_path() / "scheduler" / kName;
    if (folder.filename() == "unet" && fs::exists(beside, ignored)) return beside;
  }
  return {};
}

DiffusersSchedule read_diffusers_schedule(const fs::path& path, const UNetConfig& unet) {
  const JsonKeys keys(path);
  DiffusersSchedule found;
  DiffusionConfig& config = found.diffusion;
  std::string name = keys.get<std::string>("_class_name", "DDPMScheduler");
  if (name.ends_with("Scheduler")) name.erase(name.size() - std::string_view("Scheduler").size());
  if (std::ranges::count(kEdm, name) > 0) {
    config.process = Process::edm;
    config.sigma_data = keys.get<double>("sigma_data", 0.5);
    keys.require<std::string>("prediction_type", "epsilon");
  } else if (std::ranges::count(kOfBetas, name) > 0) {
    read_betas(keys, config);
    config.prediction = read_prediction(keys);
  } else {
    keys.refuse("_class_name", "is not supported: its process is none of those here");
  }
  config.label_dropout = keys.get<double>("label_dropout", 0);
  try {
    check_model(config, unet.num_classes, unet.learn_sigma);
  } catch (const Error& error) {
    throw Error(fmt::format("'{}': {}", path.string(), error.what()), "this model cannot be expressed here");
  }

  std::vector<std::string> parts;
  if (const auto flags = drawing_flags(keys, name, config.process, unet.learn_sigma); !flags.empty()) {
    parts.push_back(fmt::format("its scheduler draws as difuse sample does with {}", fmt::join(flags, " ")));
  }
  const auto kind = sampler_of(keys, name);
  const bool spaced = kind && spacing_of(keys, *kind, config.process);
  if (!kind) parts.push_back(fmt::format("no sampler here is its {}", name));
  if (kind && !spaced) parts.emplace_back("no spacing here is its own");
  if (const auto names = keys_not_taken(keys, spaced); !names.empty()) {
    parts.push_back(fmt::format("not taken from it: {}", fmt::join(names, ", ")));
  }
  found.note = fmt::format("{}", fmt::join(parts, "; "));
  return found;
}

nlohmann::ordered_json diffusers_schedule(const DiffusionConfig& diffusion, bool learn_sigma) {
  nlohmann::ordered_json object;
  object["_diffusers_version"] = "0.30.0";
  // Of difuse alone, as "low_res_factor" in config.json: that the last class stands for no label.
  const auto write_label_dropout = [&] {
    if (diffusion.label_dropout > 0) object["label_dropout"] = diffusion.label_dropout;
  };
  if (diffusion.process == Process::edm) {
    object["_class_name"] = "EDMEulerScheduler";
    object["prediction_type"] = "epsilon";
    object["sigma_data"] = diffusion.sigma_data;
    write_label_dropout();
    return object;
  }
  if (time_factor(diffusion) != 1) {
    throw Error("diffusers' schedulers have no rescaled timesteps",
                "choose another --format: difuse keeps everything, safetensors has guided-diffusion's names",
                ExitCode::wrong_usage);
  }
  object["_class_name"] = "DDPMScheduler";
  const double scale = static_cast<double>(diffusion.timesteps) / 1000;
  object["beta_start"] = diffusion.beta_start / scale;
  object["beta_end"] = diffusion.beta_end / scale;
  object["beta_schedule"] =
      diffusion.schedule == NoiseSchedule::cosine ? "squaredcos_cap_v2" : std::string(to_string(diffusion.schedule));
  object["clip_sample"] = true;
  object["num_train_timesteps"] = diffusion.timesteps;
  object["prediction_type"] = diffusion.prediction == Prediction::eps  ? "epsilon"
                              : diffusion.prediction == Prediction::x0 ? "sample"
                                                                       : "v_prediction";
  object["timestep_spacing"] = "linspace";
  object["variance_type"] = learn_sigma ? "learned_range" : "fixed_small";
  write_label_dropout();
  return object;
}

}  // namespace difuse::models
