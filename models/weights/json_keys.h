// The JSON files of diffusers, whose values are asked for by their kind.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ir/error.h"

namespace difuse::models {

/// A JSON object in a file, as Python writes it, too: the numbers that JSON has not (NaN, Infinity, -Infinity) are
/// texts. Errors: the file cannot be read; it is no JSON object.
nlohmann::json read_json_object(const std::filesystem::path& path);

/// A JSON object in a file. Every Error names the file and, where there is one, the key.
class JsonKeys {
 public:
  /// Errors: those of read_json_object.
  explicit JsonKeys(std::filesystem::path path);

  [[noreturn]] void refuse(const std::string& key, std::string_view what,
                           std::string remedy = "this model cannot be expressed here") const;

  const nlohmann::json& object() const { return object_; }
  bool contains(const std::string& key) const { return object_.contains(key); }
  bool is_array(const std::string& key) const { return contains(key) && object_[key].is_array(); }
  bool is_null(const std::string& key) const { return !contains(key) || object_[key].is_null(); }

  /// The value, or `fallback` where it is left out or null. Error for one of another kind: bool, int64_t (0 to 2^40),
  /// double, std::string, or a list of at most 64 strings or integers.
  template <class T>
  T get(const std::string& key, T fallback) const {
    if (is_null(key)) return fallback;
    const nlohmann::json& value = object_[key];
    if (!fits<T>(value)) refuse(key, "is of the wrong kind");
    return value.get<T>();
  }
  /// Error for another value than this one.
  template <class T>
  void require(const std::string& key, const T& only) const {
    if (get<T>(key, only) != only)
      refuse(key, fmt::format("is not supported, only {} is", nlohmann::json(only).dump()));
  }

 private:
  template <class T>
  static bool fits(const nlohmann::json& value) {
    constexpr int64_t kMost = int64_t{1} << 40;
    constexpr size_t kLongestList = 64;
    if constexpr (std::is_same_v<T, bool>) {
      return value.is_boolean();
    } else if constexpr (std::is_same_v<T, int64_t>) {
      if (!value.is_number_integer()) return false;
      if (value.is_number_unsigned()) return value.get<uint64_t>() <= static_cast<uint64_t>(kMost);
      return value.get<int64_t>() >= 0 && value.get<int64_t>() <= kMost;
    } else if constexpr (std::is_same_v<T, double>) {
      return value.is_number();
    } else if constexpr (std::is_same_v<T, std::string>) {
      return value.is_string();
    } else {
      bool all = value.is_array() && value.size() <= kLongestList;
      for (const nlohmann::json& element : value) {
        all = all && (std::is_same_v<T, std::vector<std::string>> ? element.is_string() : element.is_number_integer());
      }
      return all;
    }
  }

  std::filesystem::path path_;
  nlohmann::json object_;
};

}  // namespace difuse::models
