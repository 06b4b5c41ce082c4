#include "models/weights/trained_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "ir/error.h"
#include "models/presets.h"
#include "models/unet.h"
#include "models/weights/adm.h"
#include "models/weights/diffusers.h"
#include "models/weights/diffusers_schedule.h"
#include "models/weights/foreign_config.h"
#include "models/weights/mismatch.h"
#include "models/weights/strided.h"
#include "models/weights/tensor_layout.h"

namespace difuse::models {

namespace fs = std::filesystem;

namespace {

bool has_prefix(const FileTensors& tensors, std::string_view prefix) {
  const auto at = tensors.lower_bound(prefix);
  return at != tensors.end() && at->first.starts_with(prefix);
}

/// The tensors of these names, null where the file lacks one; empty where it has none of them.
std::vector<const FileTensor*> find_parts(const FileTensors& tensors, const std::vector<std::string>& names) {
  std::vector<const FileTensor*> parts;
  for (const std::string& name : names) {
    const auto found = tensors.find(name);
    parts.push_back(found == tensors.end() ? nullptr : &found->second);
  }
  if (std::ranges::all_of(parts, [](const FileTensor* part) { return part == nullptr; })) parts.clear();
  return parts;
}

/// Gives `work`'s errors the name of the file.
template <class Work>
auto naming(const fs::path& path, const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw Error(fmt::format("'{}': {}", path.string(), error.what()), error.remedy(), error.exit_code());
  }
}

/// A UNet that works on what an autoencoder makes of images.
std::string note_of_latents(const fs::path& unet_folder) {
  std::error_code ignored;
  const fs::path whole = fs::weakly_canonical(unet_folder, ignored);
  for (const char* name : {"vqvae", "vae"}) {
    const fs::path beside = whole.parent_path() / name;
    if (whole.filename() != "unet" || !fs::is_directory(beside, ignored)) continue;
    return fmt::format(
        "its images are latents of the autoencoder '{}', which is not read here: what is drawn are these, "
        "not pictures",
        beside.string());
  }
  return {};
}

std::string process_note(const DiffusionConfig& diffusion, bool said, const WeightsOptions& options) {
  std::string text(to_string(diffusion.process));
  if (diffusion.process == Process::ddpm) {
    text += fmt::format(", {} schedule of {} timesteps, prediction {}", to_string(diffusion.schedule),
                        diffusion.timesteps, to_string(diffusion.prediction));
    if (diffusion.unit_timesteps) text += ", times from 0 to 1 (unit_timesteps)";
  }
  if (said) return fmt::format("process: {}", text);
  return fmt::format("process: {}; the file does not say it, {}", text,
                     options.config ? "--config may, in [diffusion]" : "--config FILE can, in its table [diffusion]");
}

/// The shape that each of `count` parts has, which are concatenated along the first axis.
ir::Shape part_shape(const ir::Shape& shape, size_t count) {
  ir::Shape part = shape;
  part[0] /= static_cast<int64_t>(count);
  return part;
}

}  // namespace

bool is_difuse_checkpoint(const fs::path& path) {
  if (kind_of_file(path) != FileKind::other) return false;
  return open_checkpoint_file(path).metadata().contains("difuse.format");
}

TrainedModel TrainedModel::open(const fs::path& path, std::string_view flag, const WeightsOptions& options) {
  TrainedModel model;
  model.allow_partial_ = options.allow_partial;
  model.path_ = path;
  const fs::path folder = find_diffusers_folder(path);
  std::error_code ignored;
  if (!folder.empty() && !fs::is_directory(path, ignored)) model.path_ = folder;
  if (folder.empty()) {
    model.path_ = find_checkpoint(path, flag);
    if (is_difuse_checkpoint(model.path_)) {
      model.checkpoint_ = std::make_unique<Checkpoint>(model.path_);
      model.config_ = model.checkpoint_->config();
      require_same_config(model.path_, model.config_.unet, options);
      return model;
    }
  }
  model.open_foreign(options);
  return model;
}

void TrainedModel::open_foreign(const WeightsOptions& options) {
  ForeignConfig described;
  std::string schedule_note, latents_note;
  const FileKind kind = kind_of_file(path_);
  const fs::path folder = find_diffusers_folder(path_);
  if (!folder.empty()) {
    dialect_ = Dialect::diffusers;
    file_ = std::make_unique<TensorFile>(TensorFile::open_folder(folder));
    described.unet = read_diffusers_config(folder, tensors(), described.unknown);
    if (const fs::path schedule = find_diffusers_schedule(folder); !schedule.empty()) {
      DiffusersSchedule read = read_diffusers_schedule(schedule, described.unet);
      described.diffusion = read.diffusion;
      schedule_note = std::move(read.note);
    }
    described.kind = "a UNet2DModel of diffusers";
    latents_note = note_of_latents(folder);
  } else if (kind == FileKind::unet_cu_weights) {
    dialect_ = Dialect::unet_cu;
    bin_ = std::make_unique<UnetCuWeights>(path_);
    described.unet = bin_->config();
    described.diffusion = DiffusionConfig();
    described.kind = "weights of unet.cu";
  } else if (kind == FileKind::unet_cu_data) {
    throw Error(fmt::format("'{}' holds images of unet.cu, not weights", path_.string()), "give it to --data",
                ExitCode::wrong_usage);
  } else {
    file_ = std::make_unique<TensorFile>(TensorFile::open(path_));
    if (!file_->note().empty()) notes_.push_back(fmt::format("weights: {}", file_->note()));
    if (has_prefix(tensors(), "down_blocks.")) {
      std::error_code ignored;
      const fs::path beside = fs::absolute(path_, ignored).parent_path();
      if (fs::exists(beside / "config.json", ignored)) {
        throw Error(fmt::format("'{}' has the names of diffusers, whose config.json beside it is of {}", path_.string(),
                                kDiffusersFile),
                    fmt::format("give the folder '{}', with the file under that name", beside.string()),
                    ExitCode::wrong_usage);
      }
      throw Error(fmt::format("'{}' has the names of diffusers, and no config.json beside it says what the model is",
                              path_.string()),
                  "give the folder that holds both", ExitCode::wrong_usage);
    }
    if (has_prefix(tensors(), "input_blocks.1.0.gn1.")) {
      dialect_ = Dialect::unet_cu;
      FileTensors renamed;
      for (const auto& [name, tensor] : tensors()) renamed.emplace(name_from_unet_cu(name), tensor);
      described.unet = naming(path_, [&] { return infer_adm_config(renamed, described.unknown); });
      described.kind = "weights with the names of unet.cu";
    } else {
      dialect_ = Dialect::adm;
      const bool strided = has_prefix(tensors(), "down.");
      if (!strided && !has_prefix(tensors(), "input_blocks.")) {
        throw Error(
            fmt::format("'{}' is not a checkpoint of difuse, and its {} tensors have the names of no UNet that is "
                        "known here",
                        path_.string(), tensors().size()),
            "give weights of guided-diffusion, diffusers' UNet2DModel or unet.cu");
      }
      described.unet = naming(path_, [&] {
        return strided ? infer_strided_config(tensors(), described.unknown)
                       : infer_adm_config(tensors(), described.unknown);
      });
      described.kind = strided ? "weights of a strided UNet" : "weights with the names of guided-diffusion";
    }
  }
  config_ = settle_foreign_config(path_, described, options);
  notes_.push_back(fmt::format("'{}': {}, taken for {}", path_.string(), described.kind, config_.run.model));
  notes_.push_back(process_note(config_.diffusion, described.diffusion.has_value(), options));
  for (std::string& note : {std::ref(schedule_note), std::ref(latents_note)}) {
    if (!note.empty()) notes_.push_back(std::move(note));
  }
}

std::vector<std::string> TrainedModel::weight_names() const {
  std::vector<std::string> names = {"raw"};
  if (!checkpoint_) return names;
  for (size_t i = 0; i < config_.training.optimizer.ema_decays.size(); ++i) names.push_back(ema_state(i));
  return names;
}

std::string TrainedModel::default_weights() const { return weight_names().size() > 1 ? "ema" : "raw"; }

std::vector<std::vector<std::string>> TrainedModel::file_names(std::string_view parameter) const {
  switch (dialect_) {
    case Dialect::diffusers:
      return diffusers_names(config_.unet, parameter);
    case Dialect::unet_cu:
      return {{unet_cu_name(parameter)}};
    case Dialect::difuse:
    case Dialect::adm:
      break;
  }
  return {{std::string(parameter)}};
}

FileTensors TrainedModel::checkpoint_tensors(std::string_view set) const {
  FileTensors tensors;
  const std::string prefix = fmt::format("{}/", set);
  for (const runtime::TensorInfo& info : checkpoint_->file().tensors()) {
    if (!info.name.starts_with(prefix)) continue;
    tensors.emplace(info.name.substr(prefix.size()),
                    FileTensor{info.dtype, info.shape, {}, checkpoint_->file().bytes(info)});
  }
  return tensors;
}

std::vector<float> TrainedModel::parameters(std::string_view weights, const ParameterLayout& layout,
                                            std::vector<std::string>* report) const {
  const std::string_view set = weights == "raw" ? "params" : weights;
  if (checkpoint_ && !allow_partial_) return checkpoint_->parameters(set, layout);
  // A checkpoint has the axes of the graph, the others those of PyTorch.
  const bool own = checkpoint_ != nullptr;
  const FileTensors tensors = own ? checkpoint_tensors(set) : this->tensors();
  std::vector<float> flat =
      allow_partial_ ? initial_parameters(layout, {}) : std::vector<float>(static_cast<size_t>(layout.size()));
  Mismatch mismatch;
  std::set<std::string, std::less<>> used;
  for (size_t i = layout.specs().size(); i-- > 0;) {
    const ParameterSpec& spec = layout.specs()[i];
    const std::vector<std::vector<std::string>> choices = file_names(spec.name);
    std::vector<const FileTensor*> parts;
    const std::vector<std::string>* names = &choices.front();
    for (const std::vector<std::string>& choice : choices) {
      parts = find_parts(tensors, choice);
      names = &choice;
      if (!parts.empty()) break;
    }
    if (parts.empty()) {
      mismatch.missing.push_back({choices.front().front(), spec.shape, {}});
      continue;
    }
    used.insert(names->begin(), names->end());
    const ir::Shape shape = part_shape(spec.shape, parts.size());
    int64_t at = layout.offsets()[i];
    for (size_t part = 0; part < parts.size(); ++part, at += ir::element_count(shape)) {
      if (parts[part] == nullptr) {
        mismatch.missing.push_back({(*names)[part], shape, {}});
        continue;
      }
      const std::vector<int64_t>& found = parts[part]->shape;
      if (own ? found != shape : !fits(found, shape)) {
        mismatch.misshapen.push_back({(*names)[part], shape, own ? file_shape(found) : found});
        continue;
      }
      const std::vector<float> values = naming(path_, [&] {
        std::vector<float> read = to_f32(*parts[part], (*names)[part]);
        return own ? read : from_file_order(read, shape);
      });
      if (!std::ranges::all_of(values, [](float v) { return std::isfinite(v); })) {
        throw Error(fmt::format("'{}': the tensor '{}' is not finite", path_.string(), (*names)[part]),
                    "the training that wrote it had diverged: use an earlier file");
      }
      std::ranges::copy(values, flat.begin() + at);
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (!used.contains(name)) mismatch.extra.push_back({name, {}, tensor.shape});
  }
  if (mismatch.empty()) return flat;
  const bool none = used.empty();
  if (!allow_partial_ || none) throw mismatch_error(path_, mismatch, config_, none);
  if (report != nullptr) *report = mismatch_lines(mismatch);
  return flat;
}

}  // namespace difuse::models
