#include "runtime/data/folder/cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "ir/error.h"

namespace difuse::runtime {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::size_t kPreamble = 64;
constexpr std::string_view kTitle = "difuse images 1\n";
constexpr std::string_view kFooterMagic = "DIFUSEIM";
constexpr std::size_t kKey = 32;  // In hex.
constexpr std::size_t kFooter = 8 + 8 + 8 + 16 + 16;

std::string preamble() {
  std::string text(kTitle);
  text.resize(kPreamble, '\0');
  return text;
}

std::string little_endian(std::uint64_t value) {
  std::string text(8, '\0');
  for (char& byte : text) {
    byte = static_cast<char>(value);
    value >>= 8;
  }
  return text;
}

std::uint64_t read_u64(std::string_view text) {
  std::uint64_t value = 0;
  for (std::size_t i = 8; i-- > 0;) value = value << 8 | static_cast<unsigned char>(text[i]);
  return value;
}

std::string unhex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

/// The footer for a JSON text, checksum included.
std::string footer(std::uint64_t pixel_bytes, std::string_view text, const CacheId& id) {
  std::string head =
      std::string(kFooterMagic) + little_endian(pixel_bytes) + little_endian(text.size()) + unhex(id.content);
  return head + unhex(Fingerprint().add(std::string_view(preamble())).add(text).add(std::string_view(head)).hex());
}

std::string to_text(const Findings& findings) {
  json kinds = json::array();
  for (const auto& [kind, count] : findings.kinds) {
    kinds.push_back(
        {static_cast<int>(kind.format), static_cast<int>(kind.colour), kind.bits, kind.animated, kind.turned, count});
  }
  json bad = json::array();
  for (const auto& [index, fault] : findings.bad) bad.push_back({index, fault});
  const json object = {{"count", findings.count},
                       {"size", {findings.height, findings.width, findings.channels}},
                       {"heights", {findings.least_height, findings.most_height}},
                       {"widths", {findings.least_width, findings.most_width}},
                       {"resized", findings.resized},
                       {"kinds", kinds},
                       {"bad", bad}};
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

/// Throws json::exception for a text that to_text() does not make.
Findings from_text(std::string_view text) {
  const json object = json::parse(text);
  Findings findings;
  object.at("count").get_to(findings.count);
  object.at("size").at(0).get_to(findings.height);
  object.at("size").at(1).get_to(findings.width);
  object.at("size").at(2).get_to(findings.channels);
  object.at("heights").at(0).get_to(findings.least_height);
  object.at("heights").at(1).get_to(findings.most_height);
  object.at("widths").at(0).get_to(findings.least_width);
  object.at("widths").at(1).get_to(findings.most_width);
  object.at("resized").get_to(findings.resized);
  for (const json& row : object.at("kinds")) {
    ImageKind kind;
    kind.format = static_cast<ImageFormat>(row.at(0).get<int>());
    kind.colour = static_cast<Colour>(row.at(1).get<int>());
    row.at(2).get_to(kind.bits);
    row.at(3).get_to(kind.animated);
    row.at(4).get_to(kind.turned);
    findings.kinds[kind] = row.at(5).get<std::int64_t>();
  }
  for (const json& row : object.at("bad")) {
    findings.bad[row.at(0).get<std::int64_t>()] = row.at(1).get<std::string>();
  }
  return findings;
}

/// Files that killed processes left half-written. A day is longer than any of them is in use.
void remove_leftovers(const fs::path& path) {
  const std::string prefix = path.filename().string() + ".tmp.";
  std::error_code error;
  for (fs::directory_iterator it(path.parent_path(), error), end; !error && it != end; it.increment(error)) {
    if (!it->path().filename().native().starts_with(prefix)) continue;
    std::error_code ignored;
    const auto age = fs::file_time_type::clock::now() - fs::last_write_time(it->path(), ignored);
    if (!ignored && age > std::chrono::hours(24)) fs::remove(it->path(), ignored);
  }
}

fs::path with_folder(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) throw write_error(path.parent_path(), error.value());
  remove_leftovers(path);
  return path;
}

}  // namespace

Fingerprint& Fingerprint::add(std::span<const std::byte> bytes) {
  constexpr Uint128 kPrime = Uint128{1} << 88 | 0x13b;
  for (const std::byte byte : bytes) state_ = (state_ ^ std::to_integer<unsigned>(byte)) * kPrime;
  return *this;
}

Fingerprint& Fingerprint::add(std::uint64_t value) {
  const std::string bytes = little_endian(value);
  return add(std::as_bytes(std::span(bytes)));
}

Fingerprint& Fingerprint::add(std::string_view text) {
  add(std::uint64_t{text.size()});
  return add(std::as_bytes(std::span(text)));
}

std::string Fingerprint::hex() const {
  return fmt::format("{:016x}{:016x}", static_cast<std::uint64_t>(state_ >> 64), static_cast<std::uint64_t>(state_));
}

fs::path cache_path(const fs::path& cache_folder, const fs::path& data, const CacheId& id) {
  // The folder's name is for people; the hash keeps two folders of one name apart.
  std::string name;
  for (const char c : data.filename().string()) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
    if (name.size() < 40) name += plain ? c : '_';
  }
  if (name.empty()) name = "images";
  return cache_folder / fmt::format("{}-{}.images", name, id.name.substr(0, 16));
}

std::optional<CachedImages> open_cache(const fs::path& path, const CacheId& id, std::string& why_not) {
  why_not.clear();
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::nullopt;
  CachedImages cached;
  try {
    cached.file = MappedFile(path);
  } catch (const Error&) {
    why_not = "cannot be read";
    return std::nullopt;
  }
  const std::string_view file(reinterpret_cast<const char*>(cached.file.bytes().data()), cached.file.bytes().size());
  if (file.size() < kPreamble + kFooter || file.substr(0, kPreamble) != preamble()) {
    why_not = "is not a cache that this version writes";
    return std::nullopt;
  }
  why_not = "is damaged";
  const std::string_view end = file.substr(file.size() - kFooter);
  if (!end.starts_with(kFooterMagic)) return std::nullopt;
  const std::uint64_t pixel_bytes = read_u64(end.substr(8)), text_bytes = read_u64(end.substr(16));
  const std::uint64_t rest = file.size() - kPreamble - kFooter;
  if (pixel_bytes > rest || text_bytes != rest - pixel_bytes) return std::nullopt;
  const std::string_view text = file.substr(kPreamble + pixel_bytes, text_bytes);
  CacheId stored;
  for (const char c : end.substr(24, kKey / 2)) stored.content += fmt::format("{:02x}", static_cast<unsigned char>(c));
  if (end != footer(pixel_bytes, text, stored)) return std::nullopt;
  try {
    cached.findings = from_text(text);
  } catch (const json::exception&) {
    return std::nullopt;
  }
  const Findings& found = cached.findings;
  const bool sane = found.count > 0 && found.height > 0 && found.width > 0 && found.channels > 0;
  if (!sane || std::uint64_t(found.count) * found.height * found.width * found.channels != pixel_bytes) {
    return std::nullopt;
  }
  if (stored.content != id.content) {
    why_not = "is of other contents: the files have changed since";
    return std::nullopt;
  }
  why_not.clear();
  cached.pixels = {reinterpret_cast<const std::uint8_t*>(file.data()) + kPreamble, pixel_bytes};
  return cached;
}

CacheWriter::CacheWriter(const fs::path& path, std::uint64_t images, std::uint64_t image_bytes)
    : file_(with_folder(path), kPreamble + images * image_bytes + kFooter + (std::uint64_t{1} << 16)) {
  file_.write(preamble());
}

void CacheWriter::append(std::span<const std::uint8_t> image) {
  file_.write(std::as_bytes(image));
  pixel_bytes_ += image.size();
}

void CacheWriter::finish(const CacheId& id, const Findings& findings) {
  const std::string text = to_text(findings);
  file_.write(text);
  file_.write(footer(pixel_bytes_, text, id));
  file_.commit();
}

}  // namespace difuse::runtime
