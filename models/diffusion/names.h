// Enums by their names.
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace difuse::models {

/// The one of `choices` whose to_string() is `text`.
template <class Enum, size_t count>
std::optional<Enum> parse_name(const Enum (&choices)[count], std::string_view text) {
  for (const Enum choice : choices) {
    if (to_string(choice) == text) return choice;
  }
  return std::nullopt;
}

}  // namespace difuse::models
