#include "runtime/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "ir/error.h"
#include "runtime/atomic_file.h"

namespace difuse::runtime {

namespace fs = std::filesystem;
using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "tensor bytes are written and mapped as they are");

namespace {

constexpr std::uint64_t kPrefixBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // The reference implementation's limit.
constexpr int kMaxDepth = 3;                            // {tensor: {shape: [
constexpr std::string_view kMetadataKey = "__metadata__";

struct DTypeRow {
  TensorDType dtype;
  std::string_view name;
  std::size_t bytes;
};

constexpr std::array kDTypes = {
    DTypeRow{TensorDType::boolean, "BOOL", 1},    DTypeRow{TensorDType::u8, "U8", 1},
    DTypeRow{TensorDType::i8, "I8", 1},           DTypeRow{TensorDType::f8_e5m2, "F8_E5M2", 1},
    DTypeRow{TensorDType::f8_e4m3, "F8_E4M3", 1}, DTypeRow{TensorDType::u16, "U16", 2},
    DTypeRow{TensorDType::i16, "I16", 2},         DTypeRow{TensorDType::f16, "F16", 2},
    DTypeRow{TensorDType::bf16, "BF16", 2},       DTypeRow{TensorDType::u32, "U32", 4},
    DTypeRow{TensorDType::i32, "I32", 4},         DTypeRow{TensorDType::f32, "F32", 4},
    DTypeRow{TensorDType::u64, "U64", 8},         DTypeRow{TensorDType::i64, "I64", 8},
    DTypeRow{TensorDType::f64, "F64", 8},
};

const DTypeRow& row_of(TensorDType dtype) { return kDTypes.at(static_cast<std::size_t>(dtype)); }

const std::string kDownloadAgain = "copy or download the file again";

[[noreturn]] void malformed(const fs::path& path, std::string_view what) {
  throw Error(fmt::format("'{}' is a broken safetensors file: {}", path.string(), what), kDownloadAgain);
}

[[noreturn]] void foreign(const fs::path& path, std::string_view what, std::string remedy) {
  throw Error(fmt::format("'{}' is not a safetensors file: {}", path.string(), what), std::move(remedy));
}

[[noreturn]] void truncated(const fs::path& path, std::string_view expected, std::uint64_t found) {
  throw Error(fmt::format("'{}' is truncated: {} bytes expected, {} found", path.string(), expected, found),
              kDownloadAgain);
}

/// Says what a file is that does not begin like safetensors; returns when it cannot tell.
void name_foreign_file(const fs::path& path, std::string_view text) {
  if (text.starts_with("version https://git-lfs")) {
    foreign(path, "it is a Git-LFS pointer, not the file it points to", "run 'git lfs pull' where the file came from");
  }
  if (text.starts_with("PK\x03\x04")) {
    foreign(path, "it is a zip archive, most likely a PyTorch .pt checkpoint",
            "convert it to safetensors, or give a .safetensors file");
  }
  // A pickle begins with opcode 0x80 and its protocol number; of protocol 0 with a mark and a container, or a class.
  const bool pickle = text.size() >= 2 && text[0] == '\x80' && text[1] >= 2 && text[1] <= 5;
  if (pickle || text.starts_with("(d") || text.starts_with("(l") || text.starts_with("ccollections\n")) {
    foreign(path,
            "it is a bare Python pickle, most likely of PyTorch before 1.6; reading it would mean running its code",
            "save it again with a newer torch.save, which writes a zip archive, or as safetensors");
  }
  constexpr std::size_t kTarMagic = 257;
  const bool tar = text.size() > kTarMagic && text.substr(kTarMagic).starts_with("ustar");
  if (tar || text.starts_with("\x1f\x8b")) {
    foreign(path, tar ? "it is a tar archive" : "it is compressed by gzip", "unpack it, and give what is in it");
  }
  std::string start(text.substr(0, 64));
  start.erase(0, std::min(start.size(), start.find_first_not_of(" \t\r\n\xEF\xBB\xBF")));
  std::transform(start.begin(), start.end(), start.begin(), [](unsigned char c) { return std::tolower(c); });
  if (start.starts_with("<!doctype html") || start.starts_with("<html")) {
    foreign(path, "it is an HTML page, most likely the error page of a download", kDownloadAgain);
  }
  if (start.starts_with("<?xml")) foreign(path, "it is XML, most likely the error page of a download", kDownloadAgain);
  if (start.starts_with("{") || start.starts_with("[")) {
    foreign(path, "it is text, most likely JSON", "give the file of the weights themselves");
  }
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// The header's JSON text, after every check that needs no JSON.
std::string_view header_text(const fs::path& path, std::span<const std::byte> file) {
  if (file.empty()) {
    throw Error(fmt::format("'{}' is empty (0 bytes)", path.string()), kDownloadAgain);
  }
  const std::string_view text = as_text(file);
  if (file.size() <= kPrefixBytes) {
    name_foreign_file(path, text);
    truncated(path, fmt::format("more than {}", kPrefixBytes), file.size());
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  if (length > kMaxHeaderBytes || length < 2 || text[kPrefixBytes] != '{') {
    name_foreign_file(path, text);
    if (length > kMaxHeaderBytes) {
      foreign(path,
              fmt::format("its first 8 bytes announce a header of {} bytes (at most {} are allowed)", length,
                          kMaxHeaderBytes),
              "give a .safetensors file");
    }
    foreign(path, "its header is not a JSON object", "give a .safetensors file");
  }
  if (length > file.size() - kPrefixBytes) {
    truncated(path, fmt::format("at least {}", kPrefixBytes + length), file.size());
  }
  return text.substr(kPrefixBytes, length);
}

json parse_header(const fs::path& path, std::string_view text) {
  // nlohmann-json would keep the last of two equal keys in silence.
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      if (depth >= kMaxDepth) malformed(path, "its header is nested too deeply");
      if (event == json::parse_event_t::object_start) keys.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto& name = value.get_ref<const std::string&>();
      if (!keys.back().insert(name).second) malformed(path, fmt::format("the name '{}' comes twice", name));
    }
    return true;
  };
  try {
    return json::parse(text, check);
  } catch (const json::parse_error& error) {
    // Not error.what(): it quotes what it read, which may be megabytes of anything.
    malformed(path, fmt::format("its header is not JSON (error at its byte {})", error.byte));
  } catch (const json::exception&) {
    malformed(path, "its header has a number out of range");
  }
}

TensorMetadata parse_metadata(const fs::path& path, const json& value) {
  if (!value.is_object()) malformed(path, "'__metadata__' is not an object");
  TensorMetadata metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) malformed(path, fmt::format("the metadata '{}' is not a string", key));
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

/// Elements times element size, or nothing when it passes 64 bits.
std::optional<std::uint64_t> byte_count(TensorDType dtype, std::span<const std::int64_t> shape) {
  std::uint64_t bytes = row_of(dtype).bytes;
  bool overflow = false;
  for (const std::int64_t size : shape) {
    if (size == 0) return 0;
    overflow |= size < 0 || __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes);
  }
  return overflow ? std::nullopt : std::optional(bytes);
}

std::string shape_text(std::span<const std::int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

/// One entry of the header; offsets still count from the start of the data.
TensorInfo parse_tensor(const fs::path& path, const std::string& name, const json& value) {
  const auto complain = [&](std::string_view what) { malformed(path, fmt::format("tensor '{}' {}", name, what)); };
  const auto is_count = [](const json& number) {
    return number.is_number_unsigned() && number.get<std::uint64_t>() <= std::uint64_t{INT64_MAX};
  };
  TensorInfo tensor;
  tensor.name = name;
  if (!value.is_object()) complain("is not described by an object");
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(key)) complain(fmt::format("has no '{}'", key));
  }

  const json& dtype = value["dtype"];
  if (!dtype.is_string()) complain("has a 'dtype' that is not a string");
  const auto& dtype_name = dtype.get_ref<const std::string&>();
  const auto* row = std::find_if(kDTypes.begin(), kDTypes.end(), [&](const auto& r) { return r.name == dtype_name; });
  if (row == kDTypes.end()) complain(fmt::format("has the unknown dtype '{}'", dtype_name));
  tensor.dtype = row->dtype;

  const json& shape = value["shape"];
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_count)) {
    complain("has a 'shape' that is not a list of sizes");
  }
  tensor.shape = shape.get<std::vector<std::int64_t>>();

  const json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !std::all_of(offsets.begin(), offsets.end(), is_count)) {
    complain("has 'data_offsets' that are not two byte positions");
  }
  const auto begin = offsets[0].get<std::uint64_t>();
  const auto end = offsets[1].get<std::uint64_t>();
  if (end < begin) complain(fmt::format("ends (byte {}) before it begins (byte {})", end, begin));
  tensor.offset = begin;
  tensor.bytes = end - begin;

  const std::optional<std::uint64_t> expected = byte_count(tensor.dtype, tensor.shape);
  if (!expected) complain(fmt::format("has the impossible shape {}", shape_text(tensor.shape)));
  if (*expected != tensor.bytes) {
    complain(fmt::format("spans {} bytes, but {} {} takes {}", tensor.bytes, dtype_name, shape_text(tensor.shape),
                         *expected));
  }
  return tensor;
}

}  // namespace

std::string_view tensor_dtype_name(TensorDType dtype) { return row_of(dtype).name; }
std::size_t tensor_dtype_bytes(TensorDType dtype) { return row_of(dtype).bytes; }

TensorDType to_tensor_dtype(ir::DType dtype) {
  switch (dtype) {
    case ir::DType::f32:
      return TensorDType::f32;
    case ir::DType::bf16:
      return TensorDType::bf16;
    case ir::DType::f16:
      return TensorDType::f16;
    case ir::DType::i32:
      return TensorDType::i32;
    case ir::DType::u32:
      return TensorDType::u32;
    case ir::DType::u8:
      return TensorDType::u8;
  }
  throw Error(fmt::format("safetensors has no type for {}", ir::to_string(dtype)));
}

std::optional<ir::DType> to_ir_dtype(TensorDType dtype) {
  using enum ir::DType;
  for (const ir::DType candidate : {f32, bf16, f16, i32, u32, u8}) {
    if (to_tensor_dtype(candidate) == dtype) return candidate;
  }
  return std::nullopt;
}

SafetensorsReader::SafetensorsReader(fs::path path) : path_(std::move(path)), file_(path_) {
  const std::span<const std::byte> file = file_.bytes();
  const std::string_view text = header_text(path_, file);
  const json header = parse_header(path_, text);
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadataKey) {
      metadata_ = parse_metadata(path_, value);
    } else {
      tensors_.push_back(parse_tensor(path_, name, value));
    }
  }

  std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  const std::uint64_t data_start = kPrefixBytes + text.size();
  const std::uint64_t data_bytes = file.size() - data_start;
  std::uint64_t end = 0;
  for (TensorInfo& tensor : tensors_) {
    if (tensor.offset < end) {
      malformed(path_, fmt::format("tensor '{}' overlaps the tensor before it (byte {} of the data is used twice)",
                                   tensor.name, tensor.offset));
    }
    if (tensor.offset > end) {
      malformed(path_,
                fmt::format("{} bytes before tensor '{}' belong to no tensor", tensor.offset - end, tensor.name));
    }
    end = tensor.offset + tensor.bytes;
  }
  if (end > data_bytes) truncated(path_, std::to_string(data_start + end), file.size());
  if (end < data_bytes) malformed(path_, fmt::format("its last {} bytes belong to no tensor", data_bytes - end));

  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].offset += data_start;
    index_.emplace(tensors_[i].name, i);
  }
}

const TensorInfo* SafetensorsReader::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

std::span<const std::byte> SafetensorsReader::bytes(std::string_view name) const {
  const TensorInfo* tensor = find(name);
  if (tensor == nullptr) {
    throw Error(fmt::format("'{}' has no tensor '{}'", path_.string(), name),
                "the file belongs to another model or version; give the matching one");
  }
  return bytes(*tensor);
}

std::span<const std::byte> SafetensorsReader::bytes(const TensorInfo& tensor) const {
  return file_.bytes().subspan(tensor.offset, tensor.bytes);
}

void write_safetensors(const fs::path& path, const TensorMetadata& metadata, std::span<const TensorEntry> tensors) {
  const auto refuse = [&](const std::string& name, std::string_view what) {
    throw Error(fmt::format("cannot write tensor '{}' to '{}': {}", name, path.string(), what));
  };
  nlohmann::ordered_json::object_t header;  // A vector: keeps the order and costs nothing to append to.
  if (!metadata.empty()) header.emplace_back(kMetadataKey, metadata);
  std::set<std::string_view> names;
  std::uint64_t end = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.name == kMetadataKey) refuse(tensor.name, "the name is reserved");
    if (!names.insert(tensor.name).second) refuse(tensor.name, "the name comes twice");
    if (byte_count(tensor.dtype, tensor.shape) != tensor.bytes.size()) {
      refuse(tensor.name, fmt::format("it has {} bytes, which contradicts {} {}", tensor.bytes.size(),
                                      tensor_dtype_name(tensor.dtype), shape_text(tensor.shape)));
    }
    nlohmann::ordered_json entry;
    entry["dtype"] = tensor_dtype_name(tensor.dtype);
    entry["shape"] = tensor.shape;
    entry["data_offsets"] = {end, end + tensor.bytes.size()};
    header.emplace_back(tensor.name, std::move(entry));
    end += tensor.bytes.size();
  }

  std::string text;
  try {
    text = nlohmann::ordered_json(std::move(header)).dump();
  } catch (const nlohmann::json::exception& error) {
    throw Error(
        fmt::format("cannot write '{}': a name or metadata text is not UTF-8 ({})", path.string(), error.what()));
  }
  // Readers may map the data as it is: it begins at a multiple of 8.
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > kMaxHeaderBytes) {
    throw Error(fmt::format("cannot write '{}': its header of {} bytes passes the format's limit of {}", path.string(),
                            text.size(), kMaxHeaderBytes));
  }

  const std::uint64_t length = text.size();
  AtomicFile file(path, kPrefixBytes + length + end);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(text);
  for (const TensorEntry& tensor : tensors) file.write(tensor.bytes);
  file.commit();
}

}  // namespace difuse::runtime
