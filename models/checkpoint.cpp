#include "models/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>

#include "ir/error.h"
#include "models/config_json.h"
#include "runtime/atomic_file.h"

namespace difuse::models {

namespace fs = std::filesystem;
using nlohmann::json;
using runtime::TensorDType;
using runtime::TensorEntry;

namespace {

constexpr const char* kFormat = "1";
constexpr const char* kFileName = "checkpoint.safetensors";
constexpr const char* kFolderName = "checkpoints";
constexpr const char* kCursor = "loader.position";
constexpr const char* kWrongFile = "give a checkpoint as 'difuse train' wrote it";

bool is_packed(const ir::Type& type, const ParameterLayout& layout) {
  return type.dtype == ir::DType::f32 && type.shape == ir::Shape{layout.size()};
}

std::string part_name(std::string_view state, const std::string& parameter) {
  return fmt::format("{}/{}", state, parameter);
}

fs::path numbered_file(const fs::path& folder, int64_t step) {
  return folder / kFolderName / fmt::format("step_{:08}.safetensors", step);
}

/// The step in a numbered file's name.
std::optional<int64_t> step_of(const fs::path& file) {
  const std::string name = file.filename().string();
  constexpr std::string_view kPrefix = "step_", kSuffix = ".safetensors";
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  const std::string digits = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) {
    return std::nullopt;
  }
  return std::stoll(digits);
}

/// Numbered files, oldest first.
std::vector<std::pair<int64_t, fs::path>> numbered_files(const fs::path& folder) {
  std::vector<std::pair<int64_t, fs::path>> files;
  std::error_code error;
  for (fs::directory_iterator at(folder / kFolderName, error), end; !error && at != end; at.increment(error)) {
    if (const auto step = step_of(at->path())) files.emplace_back(*step, at->path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

json metadata_json(const runtime::SafetensorsReader& reader, const std::string& key) {
  const auto found = reader.metadata().find(key);
  if (found == reader.metadata().end()) {
    throw Error(fmt::format("'{}' is an incomplete checkpoint: its metadata has no '{}'", reader.path().string(), key),
                kWrongFile);
  }
  json parsed = json::parse(found->second, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) {
    throw Error(fmt::format("'{}': '{}' in its metadata is not JSON", reader.path().string(), key), kWrongFile);
  }
  return parsed;
}

template <class Config>
Config read_config(const runtime::SafetensorsReader& reader, const std::string& key) {
  return config_from_json<Config>(metadata_json(reader, key),
                                  fmt::format("'{}': '{}' in its metadata", reader.path().string(), key));
}

template <class Number>
Number read_scalar(const runtime::SafetensorsReader& reader, const std::string& name) {
  Number value{};
  std::memcpy(&value, reader.bytes(name).data(), sizeof value);
  return value;
}

}  // namespace

uint64_t checkpoint_bytes(const ir::Graph& graph, const ParameterLayout& layout) {
  constexpr uint64_t kHeaderPerTensor = 200, kMetadata = 8192;
  uint64_t bytes = kMetadata;
  for (const int id : graph.leaves(ir::Op::state)) {
    const ir::Type& type = graph.node(id).types[0];
    bytes += static_cast<uint64_t>(type.bytes()) + kHeaderPerTensor;
    if (is_packed(type, layout)) bytes += kHeaderPerTensor * layout.specs().size();
  }
  return bytes;
}

void save_checkpoint(const fs::path& path, const RunConfig& config, const ParameterLayout& layout,
                     const StateValues& states, runtime::Cursor cursor) {
  runtime::TensorMetadata metadata;
  metadata["difuse.format"] = kFormat;
  metadata["difuse.run"] = config_to_json(config.run).dump();
  metadata["difuse.model"] = config_to_json(config.unet).dump();
  metadata["difuse.diffusion"] = config_to_json(config.diffusion).dump();
  metadata["difuse.training"] = config_to_json(config.training).dump();

  std::vector<TensorEntry> tensors;
  tensors.push_back({kCursor, TensorDType::u64, {}, std::as_bytes(std::span(&cursor.position, 1))});
  for (const auto& [name, value] : states) {
    const std::span<const std::byte> bytes(value.bytes);
    if (!is_packed(value.type, layout)) {
      tensors.push_back({name, runtime::to_tensor_dtype(value.type.dtype), value.type.shape, bytes});
      continue;
    }
    for (size_t i = 0; i < layout.specs().size(); ++i) {
      const ParameterSpec& spec = layout.specs()[i];
      tensors.push_back({part_name(name, spec.name), TensorDType::f32, spec.shape,
                         bytes.subspan(static_cast<size_t>(layout.offsets()[i]) * sizeof(float),
                                       static_cast<size_t>(spec.elements()) * sizeof(float))});
    }
  }
  runtime::write_safetensors(path, metadata, tensors);
}

void save_run(const fs::path& folder, const RunConfig& config, const ParameterLayout& layout, const StateValues& states,
              runtime::Cursor cursor, int64_t step, int64_t keep_last) {
  const fs::path latest = folder / kFileName;
  save_checkpoint(latest, config, layout, states, cursor);
  if (keep_last <= 0) return;

  const fs::path numbered = numbered_file(folder, step);
  std::error_code error;
  fs::create_directories(numbered.parent_path(), error);
  if (error) throw runtime::write_error(numbered, error.value());
  // The link gets its name by a rename, so that a numbered file of an earlier run is replaced whole.
  const fs::path link = numbered.string() + ".tmp";
  fs::remove(link, error);
  fs::create_hard_link(latest, link, error);
  if (!error) {
    fs::rename(link, numbered, error);
    std::error_code ignored;
    fs::remove(link, ignored);  // A rename of two names of one file leaves both.
  }
  if (error) save_checkpoint(numbered, config, layout, states, cursor);

  auto files = numbered_files(folder);
  std::erase_if(files, [step](const auto& file) { return file.first > step; });
  while (static_cast<int64_t>(files.size()) > keep_last) {
    fs::remove(files.front().second, error);
    files.erase(files.begin());
  }
}

void remove_leftovers(const fs::path& folder) {
  for (const fs::path& at : {folder, folder / kFolderName, folder / "samples"}) {
    std::vector<fs::path> leftovers;
    std::error_code error;
    for (fs::directory_iterator file(at, error), end; !error && file != end; file.increment(error)) {
      const std::string name = file->path().filename().string();
      const bool ours = name.starts_with(kFileName) || name.starts_with("step_") || name.starts_with("metrics.jsonl");
      if (ours && name.find(".tmp") != std::string::npos) leftovers.push_back(file->path());
    }
    for (const fs::path& leftover : leftovers) fs::remove(leftover, error);
  }
}

bool holds_checkpoint(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kFileName, ignored) || !numbered_files(folder).empty();
}

fs::path find_checkpoint(const fs::path& path, std::string_view flag) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (!fs::exists(status)) {
    throw Error(fmt::format("{} '{}' does not exist", flag, path.string()),
                "give a run's folder or a checkpoint file that 'difuse train' wrote", ExitCode::wrong_usage);
  }
  if (!fs::is_directory(status)) return path;
  if (fs::exists(path / kFileName, ignored)) return path / kFileName;
  const auto files = numbered_files(path);
  if (files.empty()) {
    throw Error(fmt::format("{} '{}' holds no {}", flag, path.string(), kFileName),
                "give the folder of a run that has saved, or the path of a checkpoint file", ExitCode::wrong_usage);
  }
  return files.back().second;
}

Checkpoint::Checkpoint(const fs::path& path) : reader_(path) {
  const auto format = reader_.metadata().find("difuse.format");
  if (format == reader_.metadata().end()) {
    throw Error(fmt::format("'{}' is not a checkpoint of difuse: its metadata has no 'difuse.format'", path.string()),
                kWrongFile);
  }
  if (format->second != kFormat) {
    throw Error(fmt::format("'{}' has checkpoint format {}, this difuse reads format {}", path.string(), format->second,
                            kFormat),
                "use the version of difuse that wrote it");
  }
  config_.run = read_config<RunSettings>(reader_, "difuse.run");
  config_.unet = read_config<UNetConfig>(reader_, "difuse.model");
  config_.diffusion = read_config<DiffusionConfig>(reader_, "difuse.diffusion");
  config_.training = read_config<TrainingConfig>(reader_, "difuse.training");
  try {
    check(config_.unet);
  } catch (const Error& error) {
    throw Error(fmt::format("'{}': its model configuration is impossible: {}", path.string(), error.what()),
                kWrongFile);
  }
  find("step", TensorDType::i32, {});
  find(kCursor, TensorDType::u64, {});
}

int64_t Checkpoint::step() const { return read_scalar<int32_t>(reader_, "step"); }

runtime::Cursor Checkpoint::cursor() const { return {read_scalar<uint64_t>(reader_, kCursor)}; }

const runtime::TensorInfo& Checkpoint::find(const std::string& name, TensorDType dtype, const ir::Shape& shape) const {
  const runtime::TensorInfo* tensor = reader_.find(name);
  if (tensor == nullptr) {
    throw Error(fmt::format("'{}' is an incomplete checkpoint: it has no tensor '{}'", path().string(), name),
                kWrongFile);
  }
  if (tensor->dtype != dtype || tensor->shape != shape) {
    throw Error(fmt::format("'{}': tensor '{}' is {}{}, but its configuration needs {}{}", path().string(), name,
                            runtime::tensor_dtype_name(tensor->dtype), ir::to_string(tensor->shape),
                            runtime::tensor_dtype_name(dtype), ir::to_string(shape)),
                kWrongFile);
  }
  return *tensor;
}

std::vector<std::byte> Checkpoint::packed(std::string_view set, const ParameterLayout& layout) const {
  std::vector<std::byte> flat(static_cast<size_t>(layout.size()) * sizeof(float));
  for (size_t i = 0; i < layout.specs().size(); ++i) {
    const ParameterSpec& spec = layout.specs()[i];
    const auto bytes = reader_.bytes(find(part_name(set, spec.name), TensorDType::f32, spec.shape));
    std::ranges::copy(bytes, flat.begin() + layout.offsets()[i] * static_cast<int64_t>(sizeof(float)));
  }
  return flat;
}

StateValues Checkpoint::states(const ir::Graph& graph, const ParameterLayout& layout) const {
  StateValues values;
  std::set<std::string> expected = {kCursor};
  for (const int id : graph.leaves(ir::Op::state)) {
    const std::string& name = graph.node(id).as<ir::LeafAttrs>().name;
    const ir::Type& type = graph.node(id).types[0];
    if (is_packed(type, layout)) {
      values[name] = {type, packed(name, layout)};
      for (const ParameterSpec& spec : layout.specs()) expected.insert(part_name(name, spec.name));
    } else {
      const auto bytes = reader_.bytes(find(name, runtime::to_tensor_dtype(type.dtype), type.shape));
      values[name] = {type, {bytes.begin(), bytes.end()}};
      expected.insert(name);
    }
  }
  for (const runtime::TensorInfo& tensor : reader_.tensors()) {
    if (expected.contains(tensor.name)) continue;
    throw Error(
        fmt::format("'{}': tensor '{}' does not belong to the training of this model", path().string(), tensor.name),
        kWrongFile);
  }
  return values;
}

std::vector<float> Checkpoint::parameters(std::string_view set, const ParameterLayout& layout) const {
  const std::string prefix = fmt::format("{}/", set);
  for (const runtime::TensorInfo& tensor : reader_.tensors()) {
    if (!tensor.name.starts_with(prefix) || layout.find(tensor.name.substr(prefix.size())) >= 0) continue;
    throw Error(fmt::format("'{}': tensor '{}' is no parameter of its model", path().string(), tensor.name),
                kWrongFile);
  }
  const std::vector<std::byte> bytes = packed(set, layout);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace difuse::models
