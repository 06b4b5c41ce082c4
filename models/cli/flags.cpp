#include "models/cli/flags.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <thread>

#include "ir/error.h"
#include "models/config/nearest.h"

namespace difuse::models {
namespace {

[[noreturn]] void bad_value(std::string_view flag, std::string_view text, std::string_view what, std::string remedy) {
  throw Error(fmt::format("{} '{}' {}", flag, text, what), std::move(remedy), ExitCode::wrong_usage);
}

template <class Number>
std::optional<Number> number_of(const std::string& text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string grammar(WholeRange range) {
  if (range.most == std::numeric_limits<int64_t>::max()) return fmt::format("a whole number from {} up", range.least);
  return fmt::format("a whole number from {} to {}", range.least, range.most);
}

std::string grammar(RealRange range) {
  std::string text = fmt::format("a number {} {}", range.open ? "above" : "from", range.least);
  if (range.most < std::numeric_limits<double>::max()) {
    text += fmt::format(" {} {}", range.open_above ? "and below" : "to", range.most);
  } else if (!range.open) {
    text += " up";
  }
  return text;
}

CLI::Option* finish(CLI::Option* option, const std::string& type, const std::string& fallback) {
  option->type_name(type)->take_last();
  if (!fallback.empty()) option->description(fmt::format("{} [{}]", option->get_description(), fallback));
  return option;
}

}  // namespace

int64_t parse_whole(std::string_view flag, const std::string& text, WholeRange range) {
  const auto value = number_of<int64_t>(text);
  if (!value) bad_value(flag, text, "is not a whole number", fmt::format("give {}", grammar(range)));
  if (*value < range.least || *value > range.most) {
    bad_value(flag, text, "is out of range", fmt::format("give {}", grammar(range)));
  }
  return *value;
}

double parse_real(std::string_view flag, const std::string& text, RealRange range) {
  const auto value = number_of<double>(text);
  if (!value || !std::isfinite(*value)) {
    bad_value(flag, text, "is not a number", fmt::format("give {}", grammar(range)));
  }
  const bool low = range.open ? *value <= range.least : *value < range.least;
  const bool high = range.open_above ? *value >= range.most : *value > range.most;
  if (low || high) bad_value(flag, text, "is out of range", fmt::format("give {}", grammar(range)));
  return *value;
}

uint64_t parse_seed(std::string_view flag, const std::string& text) {
  const auto value = number_of<uint64_t>(text);
  if (!value) bad_value(flag, text, "is not a seed", "give a whole number from 0 to 2^64 - 1");
  return *value;
}

std::string parse_choice(std::string_view flag, const std::string& text, std::span<const std::string> choices) {
  for (const std::string& choice : choices) {
    if (choice == text) return text;
  }
  bad_value(flag, text, "is unknown", choose_from(text, choices));
}

CLI::Option* add_whole(CLI::App& app, const std::string& flag, std::optional<int64_t>& to, WholeRange range,
                       const std::string& help, const std::string& fallback) {
  return finish(app.add_option_function<std::string>(
                    flag, [=, &to](const std::string& text) { to = parse_whole(flag, text, range); }, help),
                "N", fallback);
}

CLI::Option* add_real(CLI::App& app, const std::string& flag, std::optional<double>& to, RealRange range,
                      const std::string& help, const std::string& fallback) {
  return finish(app.add_option_function<std::string>(
                    flag, [=, &to](const std::string& text) { to = parse_real(flag, text, range); }, help),
                "X", fallback);
}

CLI::Option* add_seed(CLI::App& app, const std::string& flag, std::optional<uint64_t>& to, const std::string& help,
                      const std::string& fallback) {
  return finish(app.add_option_function<std::string>(
                    flag, [=, &to](const std::string& text) { to = parse_seed(flag, text); }, help),
                "N", fallback);
}

CLI::Option* add_choice(CLI::App& app, const std::string& flag, std::optional<std::string>& to,
                        std::vector<std::string> choices, const std::string& help, const std::string& fallback) {
  const std::string type = fmt::format("{}", fmt::join(choices, "|"));
  CLI::Option* option = app.add_option_function<std::string>(
      flag, [=, &to](const std::string& text) { to = parse_choice(flag, text, choices); }, help);
  return finish(option, type, fallback);
}

CLI::Option* add_reals(CLI::App& app, const std::string& flag, std::optional<std::vector<double>>& to, RealRange range,
                       const std::string& help, const std::string& fallback) {
  const auto parse = [=, &to](const std::string& text) {
    to.emplace();
    for (const std::string& part : CLI::detail::split(text, ',')) to->push_back(parse_real(flag, part, range));
  };
  return finish(app.add_option_function<std::string>(flag, parse, help), "X[,X...]", fallback);
}

CLI::Option* add_text(CLI::App& app, const std::string& flag, std::optional<std::string>& to, const std::string& type,
                      const std::string& help, const std::string& fallback) {
  return finish(app.add_option_function<std::string>(
                    flag, [&to](const std::string& text) { to = text; }, help),
                type, fallback);
}

CLI::Option* add_path(CLI::App& app, const std::string& flag, std::string& to, const std::string& help) {
  // Of two paths the first would be forgotten, which nobody means.
  return app
      .add_option_function<std::vector<std::string>>(
          flag,
          [=, &to](const std::vector<std::string>& given) {
            if (given.size() > 1) bad_value(flag, given[1], "is a second path", "give the flag once");
            if (given[0].empty()) bad_value(flag, given[0], "is empty", "give a path");
            to = given[0];
          },
          help)
      ->type_name("PATH")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void missing_flag(std::string_view command, std::string_view flag, std::string_view example) {
  throw Error(fmt::format("difuse {} needs {}", command, flag),
              fmt::format("for example: {}; 'difuse {} --help' lists all flags", example, command),
              ExitCode::wrong_usage);
}

CLI::Option* add_threads(CLI::App& app, std::optional<int64_t>& to) {
  return add_whole(app, "--threads", to, {1, 4096}, "Threads to compute with; no bit depends on it", "all cores");
}

int resolve_threads(std::optional<int64_t> threads) {
  const int64_t cores = std::max(1u, std::thread::hardware_concurrency());
  return static_cast<int>(threads.value_or(cores));
}

CLI::Option* add_tune_budget(CLI::App& app, std::optional<double>& to) {
  return add_real(app, "--tune-budget", to, {.least = 0, .most = 1e7, .open = true},
                  "Seconds for tuning CUDA kernels that no table knows");
}

ir::Options with_tuning(ir::Options options, std::optional<double> budget) {
  if (!budget) return options;
  options.tune = ir::Tuning::on;
  options.tune_budget = *budget;
  return options;
}

CLI::Option* add_device(CLI::App& app, DeviceChoice& to) {
  const auto parse = [&to](const std::string& text) {
    const std::optional<DeviceChoice> choice = parse_device(text);
    if (!choice) bad_value("--device", text, "is unknown", "give auto, cpu, cuda, or cuda:N for GPU number N");
    to = *choice;
  };
  return finish(
      app.add_option_function<std::string>("--device", parse, "Where to compute; auto: a GPU if one is there"),
      "auto|cpu|cuda[:N]", "auto");
}

CLI::Option* add_dtype(CLI::App& app, std::optional<passes::Precision>& to, const std::string& fallback) {
  static const std::vector<std::string> kNames = {"bf16", "tf32", "f32"};
  const auto parse = [&to](const std::string& text) {
    to = passes::parse_precision(parse_choice("--dtype", text, kNames));
  };
  return finish(app.add_option_function<std::string>(
                    "--dtype", parse, "Precision: bf16 storage, tf32 products, or f32; sums are f32 in all"),
                fmt::format("{}", fmt::join(kNames, "|")), fallback);
}

CLI::Option* add_prologue(CLI::App& app, passes::Prologues& to) {
  static const std::vector<std::string> kNames = {"auto", "always", "never"};  // As in passes::Prologues.
  const auto parse = [&to](const std::string& text) {
    const std::string name = parse_choice("--prologue", text, kNames);
    to = static_cast<passes::Prologues>(std::ranges::find(kNames, name) - kNames.begin());
  };
  return finish(app.add_option_function<std::string>(
                    "--prologue", parse, "Whether convolutions normalise the image that they read on its way in"),
                fmt::format("{}", fmt::join(kNames, "|")), "auto");
}

}  // namespace difuse::models
