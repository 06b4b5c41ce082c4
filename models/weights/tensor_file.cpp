#include "models/weights/tensor_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>

#include "ir/error.h"
#include "ir/types.h"
#include "models/weights/json_keys.h"
#include "models/weights/unet_cu.h"
#include "models/weights/unpickle.h"
#include "models/weights/zip_archive.h"

namespace difuse::models {

namespace fs = std::filesystem;
using nlohmann::json;
using runtime::TensorDType;

namespace {

float f32_of_f16(uint16_t half) {
  const int sign = half >> 15, exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
  const float magnitude = exponent == 0x1f ? (fraction == 0 ? HUGE_VALF : NAN)
                          : exponent == 0  ? std::ldexp(static_cast<float>(fraction), -24)
                                           : std::ldexp(static_cast<float>(fraction + 0x400), exponent - 25);
  return sign == 0 ? magnitude : -magnitude;
}

float f32_at(TensorDType dtype, const std::byte* at) {
  uint16_t half = 0;
  float single = 0;
  double twice = 0;
  switch (dtype) {
    case TensorDType::f16:
      std::memcpy(&half, at, sizeof half);
      return f32_of_f16(half);
    case TensorDType::bf16:
      std::memcpy(&half, at, sizeof half);
      return std::bit_cast<float>(uint32_t{half} << 16);
    case TensorDType::f64:
      std::memcpy(&twice, at, sizeof twice);
      return static_cast<float>(twice);
    default:
      std::memcpy(&single, at, sizeof single);
      return single;
  }
}

/// The bytes from a tensor's first element to its last; nothing when it leaves its storage, or shows one element many
/// times over (which would make a large tensor of a small file).
std::optional<std::pair<uint64_t, uint64_t>> extent(const PickledTensor& tensor, uint64_t storage_elements) {
  uint64_t elements = 1;
  uint64_t last = 0;
  if (tensor.offset < 0 || tensor.shape.size() != tensor.strides.size()) return std::nullopt;
  bool overflow = false;
  for (size_t i = 0; i < tensor.shape.size(); ++i) {
    if (tensor.shape[i] < 0 || tensor.strides[i] < 0) return std::nullopt;
    const auto size = static_cast<uint64_t>(tensor.shape[i]), stride = static_cast<uint64_t>(tensor.strides[i]);
    overflow |= __builtin_mul_overflow(elements, size, &elements);
    uint64_t reach = 0;
    if (size > 0) overflow |= __builtin_mul_overflow(size - 1, stride, &reach);
    overflow |= __builtin_add_overflow(last, reach, &last);
  }
  const auto offset = static_cast<uint64_t>(tensor.offset);
  if (overflow || elements > storage_elements) return std::nullopt;
  if (elements == 0) return std::pair{uint64_t{0}, uint64_t{0}};
  if (offset >= storage_elements || last >= storage_elements - offset) return std::nullopt;
  return std::pair{offset, last + 1};
}

/// The dictionaries of tensors in a pickle, by the way to them: "" for the pickle itself, "ema", "state.model".
void find_dictionaries(const PickledValue& value, const std::string& way, int depth,
                       std::map<std::string, const PickledValue*>& found) {
  constexpr int kMaxDepth = 3;
  if (value.kind != PickledValue::Kind::dictionary || depth > kMaxDepth) return;
  for (const auto& [key, item] : value.pairs) {
    if (key->kind != PickledValue::Kind::text) continue;
    if (item->kind == PickledValue::Kind::tensor) {
      found.emplace(way, &value);
    } else {
      find_dictionaries(*item, way.empty() ? key->text : fmt::format("{}.{}", way, key->text), depth + 1, found);
    }
  }
}

/// The set of weights that a user means: averaged before raw, the model's before anything else's.
std::string choose_dictionary(const fs::path& path, const std::map<std::string, const PickledValue*>& found) {
  if (found.empty()) {
    throw Error(fmt::format("'{}' holds no dictionary of tensors", path.string()),
                "give a file that torch.save wrote of a model's state_dict()");
  }
  if (found.size() == 1 || found.contains("")) return found.contains("") ? std::string() : found.begin()->first;
  constexpr std::array kNames = {
      "ema", "model_ema", "ema_model", "ema_state_dict", "state_dict", "model", "model_state_dict", "net", "unet"};
  for (const char* name : kNames) {
    if (found.contains(name)) return name;
  }
  std::vector<std::string> names;
  for (const auto& [name, value] : found) names.push_back(name);
  throw Error(fmt::format("'{}' holds several sets of tensors: {}", path.string(), fmt::join(names, ", ")),
              "save the model's state_dict() alone");
}

}  // namespace

int64_t FileTensor::elements() const {
  if (std::ranges::find(shape, 0) != shape.end()) return 0;  // Its other sizes may be anything.
  return ir::element_count(shape);
}

std::vector<float> to_f32(const FileTensor& tensor, std::string_view name) {
  constexpr std::array kNumbers = {TensorDType::f32, TensorDType::f16, TensorDType::bf16, TensorDType::f64};
  if (std::ranges::find(kNumbers, tensor.dtype) == kNumbers.end()) {
    throw Error(fmt::format("the tensor '{}' has the type {}, which is none of F32, F16, BF16, F64", name,
                            runtime::tensor_dtype_name(tensor.dtype)),
                "save the weights in one of these types");
  }
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  const size_t bytes = runtime::tensor_dtype_bytes(tensor.dtype);
  if (tensor.strides.empty()) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = f32_at(tensor.dtype, tensor.bytes.data() + i * bytes);
    return values;
  }
  std::vector<int64_t> index(tensor.shape.size());
  int64_t from = 0;
  for (float& value : values) {
    value = f32_at(tensor.dtype, tensor.bytes.data() + static_cast<size_t>(from) * bytes);
    for (size_t axis = index.size(); axis-- > 0;) {
      from += tensor.strides[axis];
      if (++index[axis] < tensor.shape[axis]) break;
      from -= tensor.strides[axis] * tensor.shape[axis];
      index[axis] = 0;
    }
  }
  return values;
}

FileKind kind_of_file(const fs::path& path) {
  std::array<char, 4> begin{};
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) std::ifstream(path, std::ios::binary).read(begin.data(), begin.size());
  if (std::string_view(begin.data(), begin.size()) == "PK\x03\x04") return FileKind::zip;
  int32_t magic = 0;
  std::memcpy(&magic, begin.data(), sizeof magic);
  if (magic == kUnetCuWeights) return FileKind::unet_cu_weights;
  if (magic == kUnetCuData) return FileKind::unet_cu_data;
  return FileKind::other;
}

TensorFile TensorFile::open(const fs::path& path) {
  TensorFile file;
  if (kind_of_file(path) == FileKind::zip) {
    file.add_torch(path);
  } else {
    file.add_safetensors(path);
  }
  file.strip_prefixes();
  return file;
}

TensorFile TensorFile::open_folder(const fs::path& folder) {
  constexpr const char* kSingle = "diffusion_pytorch_model.safetensors";
  constexpr const char* kTorch = "diffusion_pytorch_model.bin";
  const fs::path index = folder / "diffusion_pytorch_model.safetensors.index.json";
  std::error_code ignored;
  if (!fs::exists(index, ignored)) {
    if (fs::exists(folder / kSingle, ignored)) return open(folder / kSingle);
    if (fs::exists(folder / kTorch, ignored)) return open(folder / kTorch);
    throw Error(fmt::format("'{}' holds no {} and no {}", folder.string(), kSingle, index.filename().string()),
                "give the folder that diffusers' save_pretrained() wrote");
  }
  const json content = read_json_object(index);
  const auto map = content.find("weight_map");
  if (map == content.end() || !map->is_object()) {
    throw Error(fmt::format("'{}' has no 'weight_map'", index.string()), "copy or download the file again");
  }
  TensorFile file;
  std::set<std::string> shards;
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string() || fs::path(shard.get<std::string>()).filename() != shard.get<std::string>()) {
      throw Error(fmt::format("'{}' names no file of its own folder for '{}'", index.string(), name),
                  "copy or download the file again");
    }
    if (shards.insert(shard.get<std::string>()).second) file.add_safetensors(folder / shard.get<std::string>());
  }
  for (const auto& [name, shard] : map->items()) {
    if (file.tensors_.contains(name)) continue;
    throw Error(fmt::format("'{}' says that '{}' has the tensor '{}', and it has not", index.string(),
                            shard.get<std::string>(), name),
                "copy or download the files again");
  }
  file.strip_prefixes();
  return file;
}

void TensorFile::add_safetensors(const fs::path& path) {
  const runtime::SafetensorsReader& reader = *readers_.emplace_back(std::make_unique<runtime::SafetensorsReader>(path));
  metadata_ = reader.metadata();
  for (const runtime::TensorInfo& info : reader.tensors()) {
    if (!tensors_.emplace(info.name, FileTensor{info.dtype, info.shape, {}, reader.bytes(info)}).second) {
      throw Error(
          fmt::format("'{}' has the tensor '{}', which another file of the folder also has", path.string(), info.name),
          "copy or download the files again");
    }
  }
}

void TensorFile::add_torch(const fs::path& path) {
  const ZipArchive archive(path, maps_.emplace_back(path).bytes());
  const auto pickle_entry = std::ranges::find_if(
      archive.entries(), [](const auto& e) { return e.name == "data.pkl" || e.name.ends_with("/data.pkl"); });
  if (pickle_entry == archive.entries().end()) {
    throw Error(fmt::format("'{}' is a zip archive, but not of PyTorch: it has no data.pkl", path.string()),
                "give a file that torch.save wrote");
  }
  const std::string prefix = pickle_entry->name.substr(0, pickle_entry->name.size() - std::strlen("data.pkl"));
  if (const auto* order = archive.find(prefix + "byteorder")) {
    std::vector<std::byte> buffer;
    const auto bytes = archive.read(*order, buffer);
    if (std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()) == "big") {
      throw Error(fmt::format("'{}' was written on a big-endian machine", path.string()),
                  "save it again on a little-endian one");
    }
  }
  std::vector<std::byte> buffer;
  const Pickle pickle(path, archive.read(*pickle_entry, buffer));
  std::map<std::string, const PickledValue*> found;
  find_dictionaries(pickle.root(), {}, 0, found);
  const std::string chosen = choose_dictionary(path, found);
  if (!chosen.empty()) note_ = fmt::format("'{}' of '{}'", chosen, path.string());

  std::map<std::string, std::span<const std::byte>> storages;
  for (const auto& [key, value] : found.at(chosen)->pairs) {
    if (key->kind != PickledValue::Kind::text || value->kind != PickledValue::Kind::tensor) continue;
    const PickledTensor& tensor = value->tensor;
    const ZipArchive::Entry* entry = archive.find(fmt::format("{}data/{}", prefix, tensor.storage.key));
    const uint64_t size = runtime::tensor_dtype_bytes(tensor.storage.dtype);
    const auto range = entry == nullptr ? std::nullopt : extent(tensor, entry->size / size);
    if (!range) {
      throw Error(
          fmt::format("'{}' is a broken PyTorch file: the tensor '{}' is not in its storage", path.string(), key->text),
          "copy or download the file again");
    }
    auto& storage = storages[entry->name];
    if (storage.empty() && entry->size > 0) storage = archive.read(*entry, unpacked_.emplace_back());
    tensors_[key->text] = {tensor.storage.dtype, tensor.shape, tensor.strides,
                           storage.subspan(range->first * size, range->second * size)};
  }
}

void TensorFile::strip_prefixes() {
  FileTensors stripped;
  for (const auto& [full, tensor] : tensors_) {
    std::string_view name = full;
    for (bool again = true; again;) {
      again = false;
      for (const std::string_view prefix : {"module.", "_orig_mod."}) {
        if (!name.starts_with(prefix)) continue;
        name.remove_prefix(prefix.size());
        again = true;
      }
    }
    if (!stripped.emplace(name, tensor).second) {
      throw Error(fmt::format("two tensors are called '{}' once their prefixes are gone", name),
                  "save the model's own state_dict()");
    }
  }
  tensors_ = std::move(stripped);
}

}  // namespace difuse::models
