// The flags by which sample, visualize and bench are told how to draw.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/sample.h"

namespace difuse::models {

/// Must outlive the parsing of what it was added to.
class SamplerFlags {
 public:
  /// --sampler, --steps, --spacing, --guidance and all the others.
  void add(CLI::App& app);
  SamplerChoice choice() const;

 private:
  SamplerChoice choice_;
  std::optional<std::string> kind_, spacing_, clipping_, variance_;
};

/// What --sampler takes.
std::vector<std::string> sampler_names();

/// --seeds, and the numbers that it lists: "3,7,10-15". An Error when they are more than `most`.
CLI::Option* add_seeds(CLI::App& app, std::optional<std::string>& to, const std::string& fallback = {});
std::vector<int32_t> parse_seeds(const std::string& text, size_t most);

}  // namespace difuse::models
