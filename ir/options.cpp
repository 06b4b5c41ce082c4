#include "ir/options.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "ir/error.h"

namespace difuse::ir {
namespace {

[[noreturn]] void malformed(const OptionRow& row, const std::string& value) {
  throw Error(fmt::format("{}=\"{}\" is malformed", row.variable, value),
              fmt::format("use {}={}: {}", row.variable, row.grammar, row.meaning), ExitCode::wrong_usage);
}

const OptionRow& find_row(std::string_view variable) {
  for (const OptionRow& row : option_table()) {
    if (row.variable == variable) return row;
  }
  throw std::logic_error("an option without a row in the table");
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

const std::vector<OptionRow>& option_table() {
  static const std::vector<OptionRow> kRows = {
      {"DIFUSE_DEBUG", "0|1",
       "print each pass with its time; on a GPU, wait for each kernel and name the one that fails"},
      {"DIFUSE_DUMP", "DIR",
       "write the IR before and after every pass there, and the source of each CUDA kernel, a folder per graph"},
      {"DIFUSE_DISABLE", "pass[,pass...]", "skip these passes"},
      {"DIFUSE_FUEL", "N", "stop rewriting after N rewrites, to bisect a wrong one"},
      {"DIFUSE_TUNE", "off|cached|on|SECONDS",
       "tiles of CUDA kernels, and which images they compute on the way: by estimate, from the tables of what was "
       "tuned "
       "(the default), or tuned first where the tables know nothing, for at most so many seconds"},
      {"DIFUSE_CACHE", "DIR",
       "where compiled kernels and decoded images are kept; else XDG_CACHE_HOME/difuse or HOME/.cache/difuse"},
      {"DIFUSE_CUDA_GRAPHS", "0|1", "capture a step as one CUDA graph, or launch kernel by kernel"},
      {"CUDA_HOME", "DIR",
       "a CUDA toolkit to look into for NVRTC before the usual places; CUDA_PATH is its second name"},
  };
  return kRows;
}

Options Options::parse(const std::function<const char*(const char*)>& lookup) {
  Options options;
  auto read = [&](const char* variable, const auto& accept) {
    const char* value = lookup(variable);
    if (value != nullptr && !accept(std::string(value))) malformed(find_row(variable), value);
  };
  auto flag = [](bool& to) {
    return [&to](const std::string& v) {
      to = v == "1";
      return v == "0" || v == "1";
    };
  };
  auto folder = [](std::string& to) {
    return [&to](const std::string& v) {
      to = v;
      return !v.empty();
    };
  };
  read("DIFUSE_DEBUG", flag(options.debug));
  read("DIFUSE_DUMP", folder(options.dump));
  read("DIFUSE_DISABLE", [&](const std::string& v) {
    options.disable = split(v);
    for (const std::string& name : options.disable) {
      if (name.empty()) return false;
    }
    return true;
  });
  read("DIFUSE_FUEL", [&](const std::string& v) {
    int64_t fuel = 0;
    const auto [end, error] = std::from_chars(v.data(), v.data() + v.size(), fuel);
    options.fuel = fuel;
    return error == std::errc() && end == v.data() + v.size() && fuel >= 0;
  });
  read("DIFUSE_TUNE", [&](const std::string& v) {
    if (v == "off") options.tune = Tuning::off;
    if (v == "cached") options.tune = Tuning::cached;
    if (v == "off" || v == "cached") return true;
    options.tune = Tuning::on;
    if (v == "on") return true;
    const auto [end, error] = std::from_chars(v.data(), v.data() + v.size(), options.tune_budget);
    return error == std::errc() && end == v.data() + v.size() && std::isfinite(options.tune_budget) &&
           options.tune_budget > 0;
  });
  read("DIFUSE_CACHE", folder(options.cache));
  read("DIFUSE_CUDA_GRAPHS", flag(options.cuda_graphs));

  auto foreign = [&](const char* variable) {
    const char* value = lookup(variable);
    return std::string(value == nullptr ? "" : value);
  };
  options.cuda_toolkit = foreign("CUDA_HOME");
  if (options.cuda_toolkit.empty()) options.cuda_toolkit = foreign("CUDA_PATH");
  options.user_cache = foreign("XDG_CACHE_HOME");
  if (options.user_cache.empty() && !foreign("HOME").empty()) options.user_cache = foreign("HOME") + "/.cache";
  return options;
}

Options Options::from_environment() {
  return parse([](const char* name) { return std::getenv(name); });
}

}  // namespace difuse::ir
