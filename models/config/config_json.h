// Configurations as text live in this folder; what must not: what the fields mean.
//
// This file: as JSON objects, the fields that a struct's `visit` lists, under their own names. Strict both ways, so
// that a checkpoint never means something else than what was trained.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "ir/error.h"
#include "models/diffusion/diffusion_config.h"
#include "models/optimizer.h"
#include "models/unet_config.h"
#include "runtime/data/image/fit.h"

namespace difuse::models {

namespace json_detail {

template <class Field>
struct IsListOfEnums : std::false_type {};
template <class Element>
struct IsListOfEnums<std::vector<Element>> : std::is_enum<Element> {};

template <class Field>
nlohmann::ordered_json write(const Field& field) {
  if constexpr (std::is_enum_v<Field>) {
    return std::string(to_string(field));
  } else if constexpr (IsListOfEnums<Field>::value) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    for (const auto& element : field) list.push_back(write(element));
    return list;
  } else {
    return field;
  }
}

}  // namespace json_detail

template <class Config>
nlohmann::ordered_json config_to_json(Config config) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  config.visit([&object](const char* name, const auto& field) { object[name] = json_detail::write(field); });
  return object;
}

namespace json_detail {

inline constexpr std::array kQkvOrders = {ir::QkvOrder::heads_first, ir::QkvOrder::qkv_first};
inline constexpr std::array kFamilies = {UNetFamily::residual, UNetFamily::strided};
inline constexpr std::array kResamplings = {Resampling::convolution, Resampling::plain, Resampling::residual};
inline constexpr std::array kNoiseSchedules = {NoiseSchedule::linear, NoiseSchedule::scaled_linear,
                                               NoiseSchedule::cosine};
inline constexpr std::array kProcesses = {Process::ddpm, Process::edm};
inline constexpr std::array kPredictions = {Prediction::eps, Prediction::x0, Prediction::v};
inline constexpr std::array kRateSchedules = {LearningRateSchedule::constant, LearningRateSchedule::cosine};
inline constexpr std::array kCrops = {runtime::Crop::center, runtime::Crop::none};
inline constexpr const auto& choices(ir::QkvOrder) { return kQkvOrders; }
inline constexpr const auto& choices(UNetFamily) { return kFamilies; }
inline constexpr const auto& choices(Resampling) { return kResamplings; }
inline constexpr const auto& choices(NoiseSchedule) { return kNoiseSchedules; }
inline constexpr const auto& choices(Process) { return kProcesses; }
inline constexpr const auto& choices(Prediction) { return kPredictions; }
inline constexpr const auto& choices(LearningRateSchedule) { return kRateSchedules; }
inline constexpr const auto& choices(runtime::Crop) { return kCrops; }

template <class Field>
bool read(const nlohmann::json& value, Field& field) {
  if constexpr (std::is_enum_v<Field>) {
    for (const Field choice : choices(Field{})) {
      if (value == std::string(to_string(choice))) {
        field = choice;
        return true;
      }
    }
    return false;
  } else {
    if constexpr (std::is_same_v<Field, bool>) {
      if (!value.is_boolean()) return false;
    } else if constexpr (std::is_integral_v<Field>) {
      if (!value.is_number_integer()) return false;
    } else if constexpr (std::is_floating_point_v<Field>) {
      if (!value.is_number()) return false;
    } else if constexpr (std::is_same_v<Field, std::string>) {
      if (!value.is_string()) return false;
    } else {
      if (!value.is_array()) return false;
      field.clear();
      for (const nlohmann::json& element : value) {
        field.emplace_back();
        if (!read(element, field.back())) return false;
      }
      return true;
    }
    field = value.get<Field>();
    return true;
  }
}

}  // namespace json_detail

/// `where` names the object for messages ("'a.safetensors': its model configuration"). Error for a field that is
/// missing, unknown or of the wrong kind.
template <class Config>
Config config_from_json(const nlohmann::json& object, std::string_view where) {
  const auto refuse = [&](const std::string& what) {
    throw Error(fmt::format("{} {}", where, what),
                "it was written by another version of difuse, or changed afterwards: use the file as it was written");
  };
  if (!object.is_object()) refuse("is not a JSON object");
  Config config;
  std::set<std::string, std::less<>> known;
  config.visit([&](const char* name, auto& field) {
    known.insert(name);
    const auto found = object.find(name);
    if (found == object.end()) {
      if constexpr (requires { Config::may_be_missing(name); }) {
        if (Config::may_be_missing(name)) return;
      }
      refuse(fmt::format("has no '{}'", name));
    }
    if (!json_detail::read(*found, field)) refuse(fmt::format("has the value {} for '{}'", found->dump(), name));
  });
  for (const auto& [name, value] : object.items()) {
    if (!known.contains(name)) refuse(fmt::format("has '{}', which this version does not know", name));
  }
  return config;
}

}  // namespace difuse::models
