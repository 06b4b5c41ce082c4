#include "models/weights/export.h"

#include <fmt/format.h>

#include <deque>
#include <nlohmann/json.hpp>
#include <system_error>

#include "ir/error.h"
#include "models/weights/diffusers.h"
#include "models/weights/diffusers_schedule.h"
#include "models/weights/tensor_layout.h"
#include "runtime/atomic_file.h"
#include "runtime/safetensors.h"

namespace difuse::models {
namespace {

namespace fs = std::filesystem;

/// Tensors with the values that they refer to.
struct Tensors {
  std::deque<std::vector<float>> values;
  std::vector<runtime::TensorEntry> entries;

  void add(std::string name, std::vector<int64_t> shape, std::vector<float> data) {
    const std::vector<float>& kept = values.emplace_back(std::move(data));
    entries.push_back({std::move(name), runtime::TensorDType::f32, std::move(shape), std::as_bytes(std::span(kept))});
  }
};

/// Files and folders of an export, which are gone again where it fails: half of one is no model.
class Made {
 public:
  Made() = default;
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  ~Made() {
    std::error_code ignored;
    for (; !paths_.empty(); paths_.pop_back()) fs::remove(paths_.back(), ignored);  // No folder that holds something.
  }

  /// Makes it, and the folders above it.
  void folder(const fs::path& path) {
    fs::path so_far;
    for (const fs::path& part : path) {
      so_far /= part;
      std::error_code error;
      if (fs::create_directory(so_far, error)) paths_.push_back(so_far);
      if (error) throw runtime::write_error(so_far, error.value());
    }
  }
  /// One that is about to be written. What was there before is not ours.
  void file(const fs::path& path) {
    std::error_code ignored;
    if (!fs::exists(path, ignored)) paths_.push_back(path);
  }
  void keep() { paths_.clear(); }

 private:
  std::vector<fs::path> paths_;
};

void export_difuse(const fs::path& to, RunConfig config, const ParameterLayout& layout, std::span<const float> flat) {
  config.training.optimizer.ema_decays.clear();  // There is one set of weights.
  StateValues states;
  const auto bytes = std::as_bytes(flat);
  states["params"] = {{ir::DType::f32, {layout.size()}}, {bytes.begin(), bytes.end()}};
  states["step"] = {{ir::DType::i32, {}}, std::vector<std::byte>(sizeof(int32_t))};
  save_checkpoint(to, config, layout, states, {});
}

void export_diffusers(const fs::path& to, const RunConfig& config, const ParameterLayout& layout,
                      std::span<const float> flat) {
  const std::string description = diffusers_config(config.unet).dump(2) + "\n";
  const std::string schedule = diffusers_schedule(config.diffusion, config.unet.learn_sigma).dump(2) + "\n";
  Tensors tensors;
  for (size_t i = layout.specs().size(); i-- > 0;) {
    const ParameterSpec& spec = layout.specs()[i];
    const auto part = flat.subspan(static_cast<size_t>(layout.offsets()[i]), static_cast<size_t>(spec.elements()));
    const std::vector<std::string> names = diffusers_names(config.unet, spec.name).front();
    const bool in_attention = names.front().find(".attentions.") != std::string::npos;
    std::vector<int64_t> shape = file_shape(spec.shape);
    if (in_attention && shape.size() == 4) shape.resize(2);  // Linear layers there, 1x1 convolutions here.
    std::vector<float> values = to_file_order(part, spec.shape);
    const auto count = static_cast<int64_t>(names.size());
    if (count > 1) {
      values = reorder_qkv(values, shape[0], config.unet.heads(shape[0] / 3), config.unet.qkv_order,
                           ir::QkvOrder::qkv_first);
    }
    shape[0] /= count;
    const auto size = static_cast<std::ptrdiff_t>(values.size()) / count;
    for (int64_t k = 0; k < count; ++k) {
      tensors.add(names[static_cast<size_t>(k)], shape, {values.begin() + k * size, values.begin() + (k + 1) * size});
    }
  }
  Made made;
  made.folder(to);
  made.file(to / kDiffusersFile);
  runtime::write_safetensors(to / kDiffusersFile, {{"format", "pt"}}, tensors.entries);
  for (const auto& [name, text] :
       {std::pair{"scheduler_config.json", &schedule}, std::pair{"config.json", &description}}) {
    made.file(to / name);
    runtime::AtomicFile file(to / name);
    file.write(*text);
    file.commit();
  }
  made.keep();
}

void export_safetensors(const fs::path& to, const ParameterLayout& layout, std::span<const float> flat) {
  Tensors tensors;
  for (size_t i = layout.specs().size(); i-- > 0;) {
    const ParameterSpec& spec = layout.specs()[i];
    const auto part = flat.subspan(static_cast<size_t>(layout.offsets()[i]), static_cast<size_t>(spec.elements()));
    std::vector<int64_t> shape = file_shape(spec.shape);
    // Attention has one-dimensional convolutions there.
    if (spec.name.ends_with(".qkv.weight") || spec.name.ends_with(".proj_out.weight")) shape.pop_back();
    tensors.add(spec.name, std::move(shape), to_file_order(part, spec.shape));
  }
  runtime::write_safetensors(to, {{"format", "pt"}}, tensors.entries);
}

}  // namespace

void export_weights(WeightsFormat format, const fs::path& to, const RunConfig& config, const ParameterLayout& layout,
                    std::span<const float> parameters) {
  switch (format) {
    case WeightsFormat::difuse:
      return export_difuse(to, config, layout, parameters);
    case WeightsFormat::diffusers:
      return export_diffusers(to, config, layout, parameters);
    case WeightsFormat::safetensors:
      return export_safetensors(to, layout, parameters);
  }
}

}  // namespace difuse::models
