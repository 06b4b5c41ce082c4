#include "models/weights/json_keys.h"

#include <fstream>
#include <utility>

namespace difuse::models {

JsonKeys::JsonKeys(std::filesystem::path path) : path_(std::move(path)) {
  std::ifstream stream(path_, std::ios::binary);
  if (!stream) throw Error(fmt::format("'{}' cannot be read", path_.string()), "copy the whole folder");
  object_ = nlohmann::json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!object_.is_object()) {
    throw Error(fmt::format("'{}' is not a JSON object", path_.string()), "copy or download the file again");
  }
}

void JsonKeys::refuse(const std::string& key, std::string_view what, std::string remedy) const {
  const auto found = object_.find(key);
  std::string value = found == object_.end() ? "(left out)" : found->dump();
  constexpr size_t kMostShown = 200;
  if (value.size() > kMostShown) value = value.substr(0, kMostShown) + "...";
  throw Error(fmt::format("'{}': \"{}\": {} {}", path_.string(), key, value, what), std::move(remedy));
}

}  // namespace difuse::models
