// The commands of `difuse`, as command_line.cpp lists them.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>

#include "ir/options.h"

namespace difuse::models {

struct CommandContext {
  ir::Options options;
  std::chrono::steady_clock::time_point started;
};

/// Runs the command after its flags were parsed; returns the exit code.
using Action = std::function<int(const CommandContext&)>;

/// Each adds its flags to `app` and returns what to do with them.
Action add_train(CLI::App& app);
Action add_sample(CLI::App& app);
Action add_visualize(CLI::App& app);
Action add_convert(CLI::App& app);
Action add_compile(CLI::App& app);
Action add_run(CLI::App& app);
Action add_tune(CLI::App& app);
Action add_bench(CLI::App& app);
Action add_check(CLI::App& app);
Action add_inspect(CLI::App& app);
Action add_doctor(CLI::App& app);

}  // namespace difuse::models
