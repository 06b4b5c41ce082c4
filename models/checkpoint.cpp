#include "models/checkpoint.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>

#include "ir/error.h"
#include "models/config/config_json.h"
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
constexpr std::string_view kStepPrefix = "step_";
constexpr std::string_view kTemporary = ".tmp.";  // AtomicFile's: then the process.
constexpr const char* kCursor = "loader.position";
constexpr const char* kChecksum = "difuse.crc32";
constexpr const char* kWrongFile = "give a checkpoint as 'difuse train' wrote it";

bool is_packed(const ir::Type& type, const ParameterLayout& layout) {
  return type.dtype == ir::DType::f32 && type.shape == ir::Shape{layout.size()};
}

std::string part_name(std::string_view state, const std::string& parameter) {
  return fmt::format("{}/{}", state, parameter);
}

/// The sets of parameters that images are drawn from.
bool is_weights(std::string_view state) { return state == "params" || state.starts_with("ema"); }

bool all_finite(std::span<const std::byte> bytes) {
  for (size_t at = 0; at < bytes.size(); at += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, &bytes[at], sizeof value);
    if (!std::isfinite(value)) return false;
  }
  return true;
}

/// What is left of the run when a save to `path` is refused.
std::string kept_text(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored) ? fmt::format("the last good checkpoint '{}' is kept", path.string())
                                   : std::string("no checkpoint was saved before");
}

fs::path numbered_file(const fs::path& folder, int64_t step) {
  return folder / kFolderName / fmt::format("step_{:08}.safetensors", step);
}

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= 18 && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// step_<digits><suffix>
bool is_numbered(std::string_view name, std::string_view suffix) {
  return name.starts_with(kStepPrefix) && name.ends_with(suffix) && name.size() > kStepPrefix.size() + suffix.size() &&
         is_number(name.substr(kStepPrefix.size(), name.size() - kStepPrefix.size() - suffix.size()));
}

/// The step in a numbered file's name.
std::optional<int64_t> step_of(const fs::path& file) {
  const std::string name = file.filename().string();
  if (!is_numbered(name, ".safetensors")) return std::nullopt;
  return std::stoll(name.substr(kStepPrefix.size()));
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

/// What to do about a broken checkpoint: use the newest of its run's other numbered ones, if there is one.
std::string remedy_for(const fs::path& broken, std::string otherwise) {
  const fs::path folder = broken.parent_path();
  auto files = numbered_files(folder.filename() == kFolderName ? folder.parent_path() : folder);
  std::error_code ignored;  // Two names of one file are broken together.
  std::erase_if(files, [&](const auto& file) { return fs::equivalent(file.second, broken, ignored); });
  if (files.empty()) return otherwise;
  return fmt::format("use the newest of the numbered checkpoints instead: '{}'", files.back().second.string());
}

[[noreturn]] void damaged(const fs::path& path, std::string_view what) {
  throw Error(fmt::format("'{}' is damaged: {}", path.string(), what),
              remedy_for(path, "copy the file again from where it came, or use another checkpoint"));
}

/// Of the tensors' bytes, one after the other.
template <class Tensors, class BytesOf>
std::string checksum(const Tensors& tensors, const BytesOf& bytes_of) {
  uLong sum = 0;
  for (const auto& tensor : tensors) {
    const std::span<const std::byte> bytes = bytes_of(tensor);
    if (!bytes.empty()) sum = ::crc32_z(sum, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  }
  return fmt::format("{:08x}", sum);
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

runtime::TensorMetadata metadata_of(const RunConfig& config) {
  return {{"difuse.format", kFormat},
          {"difuse.run", config_to_json(config.run).dump()},
          {"difuse.model", config_to_json(config.unet).dump()},
          {"difuse.diffusion", config_to_json(config.diffusion).dump()},
          {"difuse.training", config_to_json(config.training).dump()}};
}

template <class Config>
Config read_config(const runtime::SafetensorsReader& reader, const std::string& key) {
  json object = metadata_json(reader, key);
  if (object.is_object()) {  // Checkpoints of before there was a field.
    if constexpr (std::is_same_v<Config, RunSettings>) object.emplace("fingerprint", 0);
    if constexpr (std::is_same_v<Config, UNetConfig>) {
      UNetConfig().visit_later_fields(
          [&object](const char* name, const auto& field) { object.emplace(name, json_detail::write(field)); });
    }
  }
  return config_from_json<Config>(object, fmt::format("'{}': '{}' in its metadata", reader.path().string(), key));
}

template <class Number>
Number read_scalar(const runtime::SafetensorsReader& reader, const std::string& name) {
  Number value{};
  std::memcpy(&value, reader.bytes(name).data(), sizeof value);
  return value;
}

}  // namespace

uint64_t checkpoint_bytes(const ir::Graph& graph, const RunConfig& config, const ParameterLayout& layout) {
  constexpr uint64_t kHeaderPerTensor = 200, kRest = 1024;
  uint64_t bytes = kRest;
  for (const auto& [name, text] : metadata_of(config)) bytes += 2 * text.size();  // JSON in JSON: quotes are escaped.
  for (const int id : graph.leaves(ir::Op::state)) {
    const ir::Type& type = graph.node(id).types[0];
    if (is_within_step(graph.node(id).as<ir::LeafAttrs>().name)) continue;
    bytes += static_cast<uint64_t>(type.bytes()) + kHeaderPerTensor;
    if (is_packed(type, layout)) bytes += kHeaderPerTensor * layout.specs().size();
  }
  return bytes;
}

void save_checkpoint(const fs::path& path, const RunConfig& config, const ParameterLayout& layout,
                     const StateValues& states, runtime::Cursor cursor) {
  std::vector<TensorEntry> tensors;
  tensors.push_back({kCursor, TensorDType::u64, {}, std::as_bytes(std::span(&cursor.position, 1))});
  for (const auto& [name, value] : states) {
    const std::span<const std::byte> bytes(value.bytes);
    if (is_within_step(name)) {
      if (std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{}; })) continue;
      throw Error(fmt::format("a checkpoint in the middle of a step: the state '{}' is not zero", name),
                  "save after the step's last batch");
    }
    if (!is_packed(value.type, layout)) {
      tensors.push_back({name, runtime::to_tensor_dtype(value.type.dtype), value.type.shape, bytes});
      continue;
    }
    for (size_t i = 0; i < layout.specs().size(); ++i) {
      const ParameterSpec& spec = layout.specs()[i];
      const auto part = bytes.subspan(static_cast<size_t>(layout.offsets()[i]) * sizeof(float),
                                      static_cast<size_t>(spec.elements()) * sizeof(float));
      if (is_weights(name) && !all_finite(part)) {
        throw Error(fmt::format("the training has diverged: the parameter '{}' is not finite; nothing was saved, {}",
                                part_name(name, spec.name), kept_text(path)),
                    "go on from a good checkpoint with --resume, or start again, with a smaller --lr or --clip-norm 1");
      }
      tensors.push_back({part_name(name, spec.name), TensorDType::f32, spec.shape, part});
    }
  }
  runtime::TensorMetadata metadata = metadata_of(config);
  metadata[kChecksum] = checksum(tensors, [](const TensorEntry& tensor) { return tensor.bytes; });
  runtime::write_safetensors(path, metadata, tensors);
}

void save_run(const fs::path& folder, const RunConfig& config, const ParameterLayout& layout, const StateValues& states,
              runtime::Cursor cursor, int64_t step, int64_t keep_last) {
  const fs::path latest = folder / kFileName;
  std::error_code error;
  // What is behind a link is replaced: a numbered file has to stay what its name says.
  if (fs::is_symlink(latest, error) && step_of(fs::read_symlink(latest, error))) fs::remove(latest, error);
  save_checkpoint(latest, config, layout, states, cursor);
  if (keep_last <= 0) return;

  // Not a link to the latest: whoever copies another checkpoint over that one writes into the file itself.
  const fs::path numbered = numbered_file(folder, step);
  fs::create_directories(numbered.parent_path(), error);
  if (error) throw runtime::write_error(numbered, error.value());
  save_checkpoint(numbered, config, layout, states, cursor);

  auto files = numbered_files(folder);
  std::erase_if(files, [step](const auto& file) { return file.first > step; });
  while (static_cast<int64_t>(files.size()) > keep_last) {
    fs::remove(files.front().second, error);
    files.erase(files.begin());
  }
}

int64_t checkpoints_to_come(const fs::path& folder, int64_t saves, int64_t keep_last) {
  std::error_code ignored;
  const int64_t latest = fs::exists(folder / kFileName, ignored) ? 0 : 1;  // To come.
  if (keep_last <= 0) return std::min(saves, latest + 1);
  const int64_t numbered = std::max<int64_t>(0, keep_last - std::ssize(numbered_files(folder)));
  return latest + std::min(saves - 1, numbered) + 1;
}

void remove_leftovers(const fs::path& folder) {
  for (const fs::path& at : {folder, folder / kFolderName, folder / "samples"}) {
    std::vector<fs::path> leftovers;
    std::error_code error;
    for (fs::directory_iterator file(at, error), end; !error && file != end; file.increment(error)) {
      const std::string name = file->path().filename().string();
      const size_t mark = name.rfind(kTemporary);
      if (mark == std::string::npos || !is_number(name.substr(mark + kTemporary.size()))) continue;
      const std::string base = name.substr(0, mark);
      const bool ours = at == folder ? base == kFileName || base == "metrics.jsonl"
                                     : is_numbered(base, at == folder / kFolderName ? ".safetensors" : ".png");
      std::error_code ignored;
      if (ours && fs::is_regular_file(file->symlink_status(ignored))) leftovers.push_back(file->path());
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
  const bool takes_foreign = flag == "--checkpoint" || flag == "--init" || flag == "--from";
  if (!fs::exists(status)) {
    throw Error(fmt::format("{} '{}' does not exist", flag, path.string()),
                fmt::format("give a run's folder or a checkpoint file that 'difuse train' wrote{}",
                            takes_foreign ? ", or weights of another program (difuse convert --help)" : ""),
                ExitCode::wrong_usage);
  }
  if (!fs::is_directory(status)) return path;
  if (fs::exists(path / kFileName, ignored)) return path / kFileName;
  const auto files = numbered_files(path);
  if (files.empty()) {
    throw Error(fmt::format("{} '{}' holds no {}{}", flag, path.string(), kFileName,
                            takes_foreign ? ", and no config.json of diffusers" : ""),
                "give the folder of a run that has saved, or the path of a checkpoint file", ExitCode::wrong_usage);
  }
  return files.back().second;
}

runtime::SafetensorsReader open_checkpoint_file(const fs::path& path) {
  try {
    return runtime::SafetensorsReader(path);
  } catch (const Error& error) {
    if (error.exit_code() == ExitCode::wrong_usage) throw;  // There is no file to read.
    throw Error(error.what(), remedy_for(path, error.remedy()), error.exit_code());
  }
}

Checkpoint::Checkpoint(const fs::path& path) : reader_(open_checkpoint_file(path)) {
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
    check_model(config_.diffusion, config_.unet.num_classes, config_.unet.learn_sigma);
  } catch (const Error& error) {
    throw Error(fmt::format("'{}': its model configuration is impossible: {}", path.string(), error.what()),
                kWrongFile);
  }
  find("step", TensorDType::i32, {});
  find(kCursor, TensorDType::u64, {});
  check_integrity();
}

void Checkpoint::check_integrity() const {
  const auto written = reader_.metadata().find(kChecksum);
  if (written != reader_.metadata().end() &&
      written->second != checksum(reader_.tensors(), [this](const auto& tensor) { return reader_.bytes(tensor); })) {
    damaged(path(), "its tensors are not those that were written, by their checksum");
  }
  if (step() < 0) damaged(path(), fmt::format("its step is {}", step()));
  // The data's order hangs on the pass over them as a number of 32 bits.
  const uint64_t position = cursor().position, images = static_cast<uint64_t>(std::max<int64_t>(1, config_.run.images));
  if (position / images > UINT32_MAX) damaged(path(), fmt::format("its place in the data is sample {}", position));
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
    if (is_weights(set) && !all_finite(bytes)) {
      throw Error(fmt::format("'{}': the parameter '{}' is not finite", path().string(), part_name(set, spec.name)),
                  "the training that wrote it had diverged: use an earlier checkpoint");
    }
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
    if (is_within_step(name)) {
      values[name] = {type, std::vector<std::byte>(static_cast<size_t>(type.bytes()))};
    } else if (is_packed(type, layout)) {
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
