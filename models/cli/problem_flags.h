// The flags by which compile, run, bench and check are told what to compile.
#pragma once

#include <CLI/CLI.hpp>

#include "models/problem/problem.h"

namespace difuse::models {

/// --model, --mode, --batch and --graph.
void add_problem(CLI::App& app, ProblemChoice& to);

}  // namespace difuse::models
