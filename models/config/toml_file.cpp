#include "models/config/toml_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "ir/error.h"
#include "models/config/config_json.h"
#include "models/config/nearest.h"

// The parser asserts what a damaged file can break, and without assertions assumes it. Here it throws.
[[noreturn]] static void toml_is_damaged() { throw std::logic_error("the parser is lost"); }
#pragma push_macro("NDEBUG")
#undef NDEBUG
#define TOML_ASSERT(expr) ((expr) ? static_cast<void>(0) : toml_is_damaged())
#include <toml++/toml.h>
#pragma pop_macro("NDEBUG")

namespace difuse::models {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// What a field takes, as the end of "... is not".
template <class Field>
std::string grammar(const Field& field) {
  if constexpr (std::is_enum_v<Field>) {
    std::vector<std::string> names;
    for (const Field choice : json_detail::choices(field)) names.push_back(fmt::format("\"{}\"", to_string(choice)));
    return fmt::format("one of {}", fmt::join(names, ", "));
  } else if constexpr (std::is_same_v<Field, bool>) {
    return "true or false";
  } else if constexpr (std::is_integral_v<Field>) {
    return "a whole number";
  } else if constexpr (std::is_floating_point_v<Field>) {
    return "a number";
  } else {
    return fmt::format("a list, each entry {}", grammar(typename Field::value_type{}));
  }
}

/// A TOML value as JSON, so that config_json.h's reader is the one that decides on types. Null for what has no such
/// form: dates, tables, infinities.
json to_json(const toml::node& node) {
  if (const auto* text = node.as_string()) return text->get();
  if (const auto* flag = node.as_boolean()) return flag->get();
  if (const auto* whole = node.as_integer()) return whole->get();
  if (const auto* real = node.as_floating_point()) return std::isfinite(real->get()) ? json(real->get()) : json();
  if (const auto* list = node.as_array()) {
    json values = json::array();
    for (const toml::node& entry : *list) values.push_back(to_json(entry));
    return values;
  }
  return {};
}

class Reader {
 public:
  explicit Reader(const fs::path& path) : path_(path) {}

  ConfigFile read() {
    const toml::table root = parse();
    for (const auto& [key, node] : root) {
      if (key.str() == "preset") {
        if (!node.is_string()) refuse(node, fmt::format("preset = {} is not a name", text_of(node)), "give a preset");
        file_.preset = setting({}, "preset", node, to_json(node));
      } else if (key.str() == "model") {
        table<UNetConfig>("model", node);
      } else if (key.str() == "diffusion") {
        table<DiffusionConfig>("diffusion", node);
      } else if (key.str() == "training") {
        table<TrainingTable>("training", node);
      } else {
        const std::vector<std::string> names = {"preset", "model", "diffusion", "training"};
        refuse(key, fmt::format("unknown {} '{}'", node.is_table() ? "table" : "key", key.str()),
               choose_from(key.str(), names));
      }
    }
    return std::move(file_);
  }

 private:
  toml::table parse() const {
    std::error_code ignored;
    if (!fs::exists(path_, ignored)) wrong(fmt::format("the configuration '{}' does not exist", path_.string()));
    if (!fs::is_regular_file(path_, ignored)) wrong(fmt::format("the configuration '{}' is no file", path_.string()));
    std::ifstream stream(path_, std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(stream), {});
    if (!stream) wrong(fmt::format("the configuration '{}' cannot be read", path_.string()));
    try {
      return toml::parse(text, path_.string());
    } catch (const toml::parse_error& error) {
      refuse(error, std::string(error.description()), "difuse inspect PRESET --toml prints a file to start from");
    } catch (const std::logic_error&) {
      wrong(fmt::format("the configuration '{}' is not TOML", path_.string()));
    }
  }

  template <class Config>
  void table(const char* name, const toml::node& node) {
    if (!node.is_table()) {
      refuse(node, fmt::format("'{}' is not a table", name), fmt::format("write [{}] and its keys below it", name));
    }
    for (const auto& [key, value] : *node.as_table()) {
      Config config;
      std::vector<std::string> names;
      bool known = false;
      config.visit([&, &key = key, &value = value](const char* field_name, auto& field) {
        names.emplace_back(field_name);
        if (key.str() != names.back()) return;
        known = true;
        const std::string expected = grammar(field), example = config_to_json(Config{}).at(field_name).dump();
        const json given = to_json(value);
        if (!json_detail::read(given, field)) {
          refuse(value, fmt::format("{} = {} is not {}", field_name, text_of(value), expected),
                 fmt::format("give {}, such as {} = {}", expected, field_name, example));
        }
        file_.settings.push_back(setting(name, field_name, value, config_to_json(config).at(field_name)));
      });
      if (!known) refuse(key, fmt::format("unknown key '{}' in [{}]", key.str(), name), choose_from(key.str(), names));
    }
  }

  Setting setting(std::string table, std::string key, const toml::node& node, json value) const {
    std::string source = fmt::format("{}: {} = {}", place(node), key, text_of(node));
    return {std::move(source), std::move(table), std::move(key), std::move(value)};
  }

  static std::string text_of(const toml::node& node) {
    if (node.is_table()) return "a table";
    const json value = to_json(node);
    return value.is_null() ? "..." : value.dump(-1, ' ', false, json::error_handler_t::replace);
  }

  template <class At>
  std::string place(const At& at) const {
    return fmt::format("'{}' line {}", path_.string(), at.source().begin.line);
  }

  template <class At>
  [[noreturn]] void refuse(const At& at, const std::string& message, std::string remedy) const {
    throw Error(fmt::format("{}: {}", place(at), message), std::move(remedy), ExitCode::wrong_usage);
  }

  [[noreturn]] static void wrong(const std::string& message) {
    throw Error(message, "give a TOML file; difuse inspect PRESET --toml prints one to start from",
                ExitCode::wrong_usage);
  }

  const fs::path& path_;
  ConfigFile file_;
};

template <class Config>
std::string table_text(const char* name, const Config& config) {
  std::string text = fmt::format("\n[{}]\n", name);
  const nlohmann::ordered_json fields = config_to_json(config);
  // JSON's texts, numbers, booleans and lists are also TOML's.
  for (const auto& [key, value] : fields.items()) text += fmt::format("{} = {}\n", key, value.dump());
  return text;
}

}  // namespace

ConfigFile read_config_file(const fs::path& path) { return Reader(path).read(); }

std::string to_toml(const std::string& preset, const UNetConfig& unet, const DiffusionConfig& diffusion,
                    const TrainingConfig& training) {
  std::string text = "# For difuse train --config FILE. A key that is left out has the preset's value.\n";
  if (!preset.empty()) text += fmt::format("preset = {}\n", json(preset).dump());
  return text + table_text("model", unet) + table_text("diffusion", diffusion) +
         table_text("training", to_table(training));
}

}  // namespace difuse::models
