#include "codegen/tune/table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "ir/error.h"

namespace difuse::codegen {
namespace {

using nlohmann::json;

constexpr int kTableFormat = 2;
constexpr int kFormatOfTilesAlone = 1;

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

bool truth_of(const json& object, const char* name) {
  const json& value = object.at(name);
  if (!value.is_boolean()) wrong(fmt::format("\"{}\" is neither true nor false", name));
  return value;
}

double time_of(const json& object, const char* name) {
  const json& value = object.at(name);
  if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() <= 0) {
    wrong(fmt::format("\"{}\" is not a time", name));
  }
  return value;
}

const json& list_of(const json& object, const char* name) {
  const json& value = object.at(name);
  if (!value.is_array()) wrong(fmt::format("\"{}\" is not a list", name));
  return value;
}

std::string quoted(const std::string& text) { return json(text).dump(-1, ' ', false, json::error_handler_t::replace); }

/// `"name": [`, a line each, `]`.
std::string list_text(const char* name, const std::vector<std::string>& lines) {
  return fmt::format("\"{}\": [{}{}\n]", name, lines.empty() ? "" : "\n  ", fmt::join(lines, ",\n  "));
}

/// A measured time is more than none.
double printed_time(double microseconds) { return std::max(microseconds, 0.01); }

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

void TuningTable::set_prologue(const std::string& site, int64_t batch, PrologueDecision decision) {
  prologues_.insert_or_assign(Key{site, batch}, decision);
}

passes::FusionChoices TuningTable::choices() const {
  passes::FusionChoices choices;
  for (const auto& [key, decision] : prologues_) choices.prologues.emplace(key, decision.computed);
  return choices;
}

void TuningTable::forbid(const std::string& problem, const std::string& tile) {
  std::erase_if(decisions_, [&](const auto& row) { return row.first.first == problem && row.second.tile == tile; });
  forbidden_.emplace(problem, tile);
}

void TuningTable::merge(const TuningTable& news) {
  for (const auto& [key, decision] : news.decisions_) decisions_.insert_or_assign(key, decision);
  for (const auto& [key, decision] : news.prologues_) prologues_.insert_or_assign(key, decision);
}

const Decision* TuningTable::exact(const std::string& problem, int64_t batch) const {
  const auto found = decisions_.find({problem, batch});
  return found == decisions_.end() ? nullptr : &found->second;
}

const Decision* TuningTable::find(const std::string& problem, int64_t batch) const {
  return passes::nearest_batch(decisions_, problem, batch);
}

std::string print(const TuningFile& file) {
  std::vector<std::string> tiles, prologues;
  for (const auto& [key, d] : file.table.decisions()) {
    tiles.push_back(fmt::format(
        R"({{"problem": {}, "batch": {}, "tile": {}, "microseconds": {:.2f}, "default_microseconds": {:.2f}}})",
        quoted(key.first), key.second, quoted(d.tile), printed_time(d.microseconds),
        printed_time(d.default_microseconds)));
  }
  for (const auto& [key, d] : file.table.prologues()) {
    prologues.push_back(fmt::format(
        R"({{"site": {}, "batch": {}, "computed": {}, "computed_microseconds": {:.2f}, "stored_microseconds": {:.2f}}})",
        quoted(key.first), key.second, d.computed, printed_time(d.computed_microseconds),
        printed_time(d.stored_microseconds)));
  }
  return fmt::format("{{\n\"format\": {},\n\"gpu\": {},\n\"processors\": {},\n\"driver\": {},\n{},\n{}\n}}\n",
                     kTableFormat, quoted(file.device.gpu), file.device.processors, quoted(file.device.driver),
                     list_text("decisions", tiles), list_text("prologues", prologues));
}

TuningFile parse_tuning_file(std::string_view text) {
  const json object = parse_strictly(text);
  const json format = object.is_object() && object.contains("format") ? object.at("format") : json(kTableFormat);
  const bool is_of_tiles_alone = format == kFormatOfTilesAlone;
  if (!is_of_tiles_alone && format != kTableFormat) {
    wrong(fmt::format("its format is neither {} nor {}", kTableFormat, kFormatOfTilesAlone));
  }
  if (is_of_tiles_alone) {
    require_members(object, {"format", "gpu", "processors", "driver", "decisions"}, "the file");
  } else {
    require_members(object, {"format", "gpu", "processors", "driver", "decisions", "prologues"}, "the file");
  }
  TuningFile file{{text_of(object, "gpu"), count_of(object, "processors"), text_of(object, "driver")}, {}};
  for (const json& row : list_of(object, "decisions")) {
    require_members(row, {"problem", "batch", "tile", "microseconds", "default_microseconds"}, "a decision");
    const std::string problem = text_of(row, "problem");
    const int64_t batch = count_of(row, "batch");
    if (file.table.exact(problem, batch) != nullptr) {
      wrong(fmt::format("\"{}\" at batch {} is decided twice", problem, batch));
    }
    file.table.set(problem, batch,
                   {text_of(row, "tile"), time_of(row, "microseconds"), time_of(row, "default_microseconds")});
  }
  if (is_of_tiles_alone) return file;
  for (const json& row : list_of(object, "prologues")) {
    require_members(row, {"site", "batch", "computed", "computed_microseconds", "stored_microseconds"}, "a prologue");
    const std::string site = text_of(row, "site");
    const int64_t batch = count_of(row, "batch");
    if (file.table.prologues().contains({site, batch})) {
      wrong(fmt::format("\"{}\" at batch {} is decided twice", site, batch));
    }
    file.table.set_prologue(
        site, batch,
        {truth_of(row, "computed"), time_of(row, "computed_microseconds"), time_of(row, "stored_microseconds")});
  }
  return file;
}

}  // namespace difuse::codegen
