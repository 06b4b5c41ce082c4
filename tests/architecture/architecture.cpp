#include "tests/architecture/architecture.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <regex>
#include <string_view>

namespace difuse::architecture {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 5> kLayers = {"ir", "passes", "codegen", "runtime", "models"};
constexpr std::array<std::string_view, 2> kAroundLayers = {"tests", "bench"};
constexpr std::array<std::string_view, 5> kSourceExtensions = {".cpp", ".h", ".def", ".cuh", ".cu"};
constexpr std::array<std::string_view, 17> kTopLevel = {".ci",
                                                        ".clang-format",
                                                        ".clang-tidy",
                                                        ".git",
                                                        ".gitignore",
                                                        "CMakeLists.txt",
                                                        "CMakePresets.json",
                                                        "LICENSE",
                                                        "README.md",
                                                        "bench",
                                                        "codegen",
                                                        "dev",
                                                        "ir",
                                                        "models",
                                                        "passes",
                                                        "runtime",
                                                        "tests"};
constexpr std::ptrdiff_t kMaxLines = 800;

/// The position of the layer that `path` lies in, or kLayers.size().
std::size_t layer_of(std::string_view path) {
  const auto found = std::ranges::find(kLayers, path.substr(0, path.find('/')));
  return static_cast<std::size_t>(found - kLayers.begin());
}

std::string at_line(const SourceFile& file, std::size_t offset, const std::string& fault) {
  const auto line = 1 + std::count(file.text.begin(), file.text.begin() + static_cast<std::ptrdiff_t>(offset), '\n');
  return file.path + ":" + std::to_string(line) + ": " + fault;
}

std::string read(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void add_sources(const fs::path& root, std::string_view folder, std::vector<SourceFile>& files) {
  const fs::path start = root / folder;
  if (!fs::is_directory(start)) return;
  for (const auto& entry : fs::recursive_directory_iterator(start)) {
    const bool is_source = std::ranges::find(kSourceExtensions, entry.path().extension()) != kSourceExtensions.end();
    if (!entry.is_regular_file() || !is_source) continue;
    files.push_back({fs::relative(entry.path(), root).generic_string(), read(entry.path())});
  }
}

}  // namespace

std::vector<SourceFile> layer_sources(const fs::path& root) {
  std::vector<SourceFile> files;
  for (const auto layer : kLayers) add_sources(root, layer, files);
  std::ranges::sort(files, {}, &SourceFile::path);
  return files;
}

std::vector<SourceFile> all_sources(const fs::path& root) {
  std::vector<SourceFile> files = layer_sources(root);
  for (const auto folder : kAroundLayers) add_sources(root, folder, files);
  std::ranges::sort(files, {}, &SourceFile::path);
  return files;
}

std::vector<std::string> include_faults(const SourceFile& file) {
  static const std::regex include(R"re((^|\n)[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]*)[>"])re");
  static const std::regex cuda_header(R"re((cuda|nv|cublas|cudnn|nccl)\w*(/.*)?(\.h|\.cuh)?)re");
  const std::size_t own_layer = layer_of(file.path);
  std::vector<std::string> faults;
  for (std::sregex_iterator it(file.text.begin(), file.text.end(), include), end; it != end; ++it) {
    const bool quoted = it->str(2) == "\"";
    const std::string target = it->str(3);
    const auto offset = static_cast<std::size_t>(it->position(2));
    const std::size_t target_layer = layer_of(target);
    if (quoted && target_layer == kLayers.size()) {
      faults.push_back(at_line(file, offset, "\"" + target + "\" does not begin with one of the five layers"));
    } else if (target_layer < kLayers.size() && target_layer > own_layer) {
      faults.push_back(at_line(file, offset, "\"" + target + "\" is above " + std::string(kLayers[own_layer])));
    } else if (!quoted && own_layer <= 1 && std::regex_match(target, cuda_header)) {
      faults.push_back(at_line(file, offset, "<" + target + ">: ir and passes build without CUDA"));
    }
  }
  return faults;
}

std::vector<std::string> length_faults(const SourceFile& file) {
  const auto lines = std::ranges::count(file.text, '\n');
  if (lines <= kMaxLines) return {};
  return {file.path + ": " + std::to_string(lines) + " lines, more than " + std::to_string(kMaxLines)};
}

std::vector<std::string> environment_faults(const SourceFile& file) {
  static const std::regex reader(R"re(\b(secure_getenv|getenv|environ)\b)re");
  if (file.path == "ir/options.cpp") return {};
  std::vector<std::string> faults;
  for (std::sregex_iterator it(file.text.begin(), file.text.end(), reader), end; it != end; ++it) {
    faults.push_back(at_line(file, static_cast<std::size_t>(it->position()),
                             it->str() + ": only ir/options.cpp reads the environment"));
  }
  return faults;
}

std::vector<std::string> top_level_faults(const std::vector<std::string>& names,
                                          const std::vector<std::string>& ignore_lines) {
  const auto is_ignored = [&](const std::string& name) {
    return std::ranges::any_of(ignore_lines, [&](std::string_view line) {
      if (line.starts_with('/')) line.remove_prefix(1);
      if (line.ends_with('/')) line.remove_suffix(1);
      return line == name;
    });
  };
  std::vector<std::string> faults;
  for (const auto& name : names) {
    if (std::ranges::find(kTopLevel, name) == kTopLevel.end() && !is_ignored(name)) {
      faults.push_back(name + " has no place at the top of the repository");
    }
  }
  return faults;
}

}  // namespace difuse::architecture
