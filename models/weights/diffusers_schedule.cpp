#include "models/weights/diffusers_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

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

void read_betas(const JsonKeys& keys, DiffusionConfig& config) {
  const std::string schedule = keys.get<std::string>("beta_schedule", "linear");
  if (!keys.is_null("trained_betas")) keys.refuse("trained_betas", "is not supported, only null is");
  keys.require<bool>("rescale_betas_zero_snr", false);
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

}  // namespace

fs::path find_diffusers_schedule(const fs::path& unet_folder) {
  constexpr const char* kName = "scheduler_config.json";
  const fs::path folder = unet_folder.has_filename() ? unet_folder : unet_folder.parent_path();
  std::error_code ignored;
  if (fs::exists(folder / kName, ignored)) return folder / kName;
  const fs::path beside = folder.parent_path() / "scheduler" / kName;
  return folder.filename() == "unet" && fs::exists(beside, ignored) ? beside : fs::path();
}

DiffusersSchedule read_diffusers_schedule(const fs::path& path) {
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
  try {
    check(config);
  } catch (const Error& error) {
    throw Error(fmt::format("'{}': {}", path.string(), error.what()), "this model cannot be expressed here");
  }

  if (keys.get<std::string>("variance_type", "fixed_small") == "fixed_large") {
    found.notes.emplace_back("its scheduler draws with a large variance: give --variance large for the same");
  }
  if (keys.get<bool>("thresholding", false)) {
    found.notes.emplace_back("its scheduler draws with dynamic thresholding: give --clip dynamic for the same");
  } else if (config.process == Process::ddpm && !keys.get<bool>("clip_sample", true)) {
    found.notes.emplace_back("its scheduler does not clip: give --clip none for the same");
  }
  return found;
}

nlohmann::ordered_json diffusers_schedule(const DiffusionConfig& diffusion, bool learn_sigma) {
  nlohmann::ordered_json object;
  object["_diffusers_version"] = "0.30.0";
  if (diffusion.process == Process::edm) {
    object["_class_name"] = "EDMEulerScheduler";
    object["prediction_type"] = "epsilon";
    object["sigma_data"] = diffusion.sigma_data;
    return object;
  }
  if (diffusion.rescale_timesteps && diffusion.timesteps != 1000) {
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
  object["variance_type"] = learn_sigma ? "learned_range" : "fixed_small";
  return object;
}

}  // namespace difuse::models
