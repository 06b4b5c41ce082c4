#include "models/weights/json_keys.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

namespace difuse::models {

namespace {

/// Puts quotes round Python's numbers that JSON has not, where they are no part of a text.
std::string quoted_numbers(std::string_view text) {
  constexpr std::string_view kNumbers[] = {"-Infinity", "Infinity", "NaN"};
  std::string out;
  bool in_text = false;
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    const auto* number = std::ranges::find_if(kNumbers, [&](std::string_view n) { return rest.starts_with(n); });
    if (!in_text && number != std::end(kNumbers)) {
      out += fmt::format("\"{}\"", *number);
      i += number->size();
      continue;
    }
    if (text[i] == '"') in_text = !in_text;
    if (in_text && text[i] == '\\' && i + 1 < text.size()) out += text[i++];  // With what follows, a quote perhaps.
    out += text[i++];
  }
  return out;
}

}  // namespace

nlohmann::json read_json_object(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (!stream) throw Error(fmt::format("'{}' cannot be read", path.string()), "copy the whole folder");
  nlohmann::json object = nlohmann::json::parse(quoted_numbers(text), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    throw Error(fmt::format("'{}' is not a JSON object", path.string()), "copy or download the file again");
  }
  return object;
}

JsonKeys::JsonKeys(std::filesystem::path path) : path_(std::move(path)), object_(read_json_object(path_)) {}

void JsonKeys::refuse(const std::string& key, std::string_view what, std::string remedy) const {
  const auto found = object_.find(key);
  std::string value = found == object_.end() ? "(left out)" : found->dump();
  constexpr size_t kMostShown = 200;
  if (value.size() > kMostShown) value = value.substr(0, kMostShown) + "...";
  throw Error(fmt::format("'{}': \"{}\": {} {}", path_.string(), key, value, what), std::move(remedy));
}

}  // namespace difuse::models
