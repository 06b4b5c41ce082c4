#include "codegen/tune/table.h"

#include <fmt/format.h>

#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>

#include "ir/error.h"

namespace difuse::codegen {
namespace {

using nlohmann::json;

constexpr int kTableFormat = 1;

[[noreturn]] void wrong(const std::string& what) { throw Error(what); }

/// An object with these members and no others.
void require_members(const json& object, std::initializer_list<const char*> names, const char* what) {
  if (!object.is_object()) wrong(fmt::format("{} is not an object", what));
  for (const char* name : names) {
    if (!object.contains(name)) wrong(fmt::format("{} has no \"{}\"", what, name));
  }
  for (const auto& [name, value] : object.items()) {
    bool known = false;
    for (const char* n : names) known = known || name == n;
    if (!known) wrong(fmt::format("{} has an unknown member \"{}\"", what, name));
  }
}

std::string text_of(const json& object, const char* name) {
  const json& value = object.at(name);
  if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
    wrong(fmt::format("\"{}\" is not a text", name));
  }
  return value;
}

int64_t count_of(const json& object, const char* name) {
  const json& value = object.at(name);
  if (!value.is_number_integer() || value.get<int64_t>() < 1) wrong(fmt::format("\"{}\" is not a count", name));
  return value;
}

double time_of(const json& object, const char* name) {
  const json& value = object.at(name);
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= 0) {
    wrong(fmt::format("\"{}\" is not a time", name));
  }
  return value;
}

/// nlohmann's parser keeps the last of two members of the same name.
json parse_strictly(std::string_view text) {
  std::vector<std::set<std::string>> names;
  const auto watch = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) names.emplace_back();
    if (event == json::parse_event_t::object_end) names.pop_back();
    if (event == json::parse_event_t::key && !names.back().insert(parsed.get<std::string>()).second) {
      wrong(fmt::format("\"{}\" stands twice in one object", parsed.get<std::string>()));
    }
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const json::exception& error) {
    wrong(fmt::format("it is not JSON: {}", error.what()));
  }
}

}  // namespace

void TuningTable::set(const std::string& problem, int64_t batch, Decision decision) {
  decisions_.insert_or_assign(Key{problem, batch}, std::move(decision));
}

void TuningTable::forbid(const std::string& problem, const std::string& tile) {
  std::erase_if(decisions_, [&](const auto& row) { return row.first.first == problem && row.second.tile == tile; });
  forbidden_.emplace(problem, tile);
}

void TuningTable::merge(const TuningTable& news) {
  for (const auto& [key, decision] : news.decisions_) decisions_.insert_or_assign(key, decision);
}

const Decision* TuningTable::exact(const std::string& problem, int64_t batch) const {
  const auto found = decisions_.find({problem, batch});
  return found == decisions_.end() ? nullptr : &found->second;
}

const Decision* TuningTable::find(const std::string& problem, int64_t batch) const {
  const Decision* nearest = nullptr;
  double distance = 0;
  for (auto it = decisions_.lower_bound({problem, 0}); it != decisions_.end() && it->first.first == problem; ++it) {
    const double d = std::abs(std::log(static_cast<double>(it->first.second) / static_cast<double>(batch)));
    if (nearest != nullptr && d >= distance) continue;
    nearest = &it->second;
    distance = d;
  }
  return nearest;
}

std::string print(const TuningFile& file) {
  const auto quoted = [](const std::string& text) {
    return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  };
  std::string text =
      fmt::format("{{\n\"format\": {},\n\"gpu\": {},\n\"processors\": {},\n\"driver\": {},\n\"decisions\": [",
                  kTableFormat, quoted(file.device.gpu), file.device.processors, quoted(file.device.driver));
  const char* before = "\n";
  for (const auto& [key, decision] : file.table.decisions()) {
    text += fmt::format(
        "{}  {{\"problem\": {}, \"batch\": {}, \"tile\": {}, \"microseconds\": {:.2f}, \"default_microseconds\": "
        "{:.2f}}}",
        before, quoted(key.first), key.second, quoted(decision.tile), std::max(decision.microseconds, 0.01),
        std::max(decision.default_microseconds, 0.01));
    before = ",\n";
  }
  return text + "\n]\n}\n";
}

TuningFile parse_tuning_file(std::string_view text) {
  const json object = parse_strictly(text);
  require_members(object, {"format", "gpu", "processors", "driver", "decisions"}, "the file");
  if (object.at("format") != kTableFormat) wrong(fmt::format("its format is not {}", kTableFormat));
  TuningFile file{{text_of(object, "gpu"), count_of(object, "processors"), text_of(object, "driver")}, {}};
  if (!object.at("decisions").is_array()) wrong("\"decisions\" is not a list");
  for (const json& row : object.at("decisions")) {
    require_members(row, {"problem", "batch", "tile", "microseconds", "default_microseconds"}, "a decision");
    const std::string problem = text_of(row, "problem");
    const int64_t batch = count_of(row, "batch");
    if (file.table.exact(problem, batch) != nullptr) {
      wrong(fmt::format("\"{}\" at batch {} is decided twice", problem, batch));
    }
    file.table.set(problem, batch,
                   {text_of(row, "tile"), time_of(row, "microseconds"), time_of(row, "default_microseconds")});
  }
  return file;
}

}  // namespace difuse::codegen
