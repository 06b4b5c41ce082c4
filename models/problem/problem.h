// models/problem/: steps to compile and to try out, without data and without a checkpoint. What must not live here:
// training and drawing for real.
//
// This file: what --model, --mode, --batch and --graph name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "ir/graph.h"

namespace difuse::models {

struct ProblemChoice {
  std::optional<std::string> model;    ///< A preset.
  std::optional<std::string> mode;     ///< "train", "sample" or "forward" (the UNet alone); train.
  std::optional<std::string> sampler;  ///< Of "sample"; the process's default.
  std::optional<int64_t> batch;        ///< The preset's in training, 16 otherwise.
  std::string graph;                   ///< A file in text form, instead of all these; empty: none.
};

struct Problem {
  ir::Graph graph;
  std::string title;   ///< "adm-seed64, train, batch 32", or the file's name.
  int64_t batch = 0;   ///< Images of a step; 0 where that is not known.
  std::string preset;  ///< Empty for a file.
};

/// Throws Error (wrong usage): neither a model nor a graph, or both; an unreadable file; a graph that does not parse.
Problem load_problem(const ProblemChoice& choice, const char* command);

}  // namespace difuse::models
