// The house rules that a machine can check: which way includes run, how long a file may be, what lies at the top.
//
// The checks are free functions over text and paths, so that tests can hand them made-up files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace difuse::architecture {

/// A source file: its path from the repository's root, with forward slashes, and its text.
struct SourceFile {
  std::string path;
  std::string text;
};

/// Every source file (.cpp, .h, .def, .cuh, .cu) below the five layers, sorted by path.
std::vector<SourceFile> layer_sources(const std::filesystem::path& root);

/// Every source file below the five layers, tests/ and bench/, sorted by path.
std::vector<SourceFile> all_sources(const std::filesystem::path& root);

/// Faults in what `file` includes, one line each: a quoted include that is not root-relative, runs up the chain
/// ir <- passes <- codegen <- runtime <- models, or leaves the layers; a CUDA header in ir or passes.
std::vector<std::string> include_faults(const SourceFile& file);

/// A fault when `file` is longer than 800 lines.
std::vector<std::string> length_faults(const SourceFile& file);

/// Faults where `file` reads the environment, which ir/options.cpp alone may do.
std::vector<std::string> environment_faults(const SourceFile& file);

/// Entries of `names` that have no place at the top of the repository. `ignore_lines` are .gitignore's lines, whose
/// plain names (build, /runs/) are allowed.
std::vector<std::string> top_level_faults(const std::vector<std::string>& names,
                                          const std::vector<std::string>& ignore_lines);

}  // namespace difuse::architecture
