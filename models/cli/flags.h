// Flags whose wrong values are named: every parser here throws an Error (wrong_usage) that says the flag, the value and
// what the flag takes.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/run/backend.h"

namespace difuse::models {

/// What a whole number may be; both ends are allowed.
struct WholeRange {
  int64_t least = 0;
  int64_t most = std::numeric_limits<int64_t>::max();
};

/// What a real number may be: finite, at least (or, `open`, above) `least`, at most (or, `open_above`, below) `most`.
struct RealRange {
  double least = 0;
  double most = std::numeric_limits<double>::max();
  bool open = false;
  bool open_above = false;
};

int64_t parse_whole(std::string_view flag, const std::string& text, WholeRange range);
double parse_real(std::string_view flag, const std::string& text, RealRange range);
uint64_t parse_seed(std::string_view flag, const std::string& text);
/// `text` when it is one of `choices`; the Error lists them and names the nearest.
std::string parse_choice(std::string_view flag, const std::string& text, std::span<const std::string> choices);

/// `flag` is "--batch"; `fallback` is shown in --help and may be empty.
CLI::Option* add_whole(CLI::App& app, const std::string& flag, std::optional<int64_t>& to, WholeRange range,
                       const std::string& help, const std::string& fallback = {});
CLI::Option* add_real(CLI::App& app, const std::string& flag, std::optional<double>& to, RealRange range,
                      const std::string& help, const std::string& fallback = {});
CLI::Option* add_seed(CLI::App& app, const std::string& flag, std::optional<uint64_t>& to, const std::string& help,
                      const std::string& fallback = {});
CLI::Option* add_choice(CLI::App& app, const std::string& flag, std::optional<std::string>& to,
                        std::vector<std::string> choices, const std::string& help, const std::string& fallback = {});
/// Numbers separated by commas.
CLI::Option* add_reals(CLI::App& app, const std::string& flag, std::optional<std::vector<double>>& to, RealRange range,
                       const std::string& help, const std::string& fallback = {});
/// Any text; `type` is shown in --help.
CLI::Option* add_text(CLI::App& app, const std::string& flag, std::optional<std::string>& to, const std::string& type,
                      const std::string& help, const std::string& fallback = {});
/// A path; an empty one is an Error.
CLI::Option* add_path(CLI::App& app, const std::string& flag, std::string& to, const std::string& help);

/// The Error for a flag that must be given and is not.
[[noreturn]] void missing_flag(std::string_view command, std::string_view flag, std::string_view example);

/// --threads, and what it means: the cores this process may use unless given.
CLI::Option* add_threads(CLI::App& app, std::optional<int64_t>& to);
int resolve_threads(std::optional<int64_t> threads);

/// --tune-budget, and what it says to commands that tune only when asked.
CLI::Option* add_tune_budget(CLI::App& app, std::optional<double>& to);
ir::Options with_tuning(ir::Options options, std::optional<double> budget);

/// --device and --dtype.
CLI::Option* add_device(CLI::App& app, DeviceChoice& to);
CLI::Option* add_dtype(CLI::App& app, std::optional<passes::Precision>& to,
                       const std::string& fallback = "bf16 on a GPU, f32 on the CPU");
/// --prologue.
CLI::Option* add_prologue(CLI::App& app, passes::Prologues& to);

}  // namespace difuse::models
