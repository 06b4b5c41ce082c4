#include "codegen/jit/compiler_log.h"

#include <fmt/format.h>

#include <charconv>
#include <vector>

namespace difuse::codegen {
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// The number right before `what` in a line such as "0 bytes stack frame, 16 bytes spill stores"; 0 without one.
int64_t number_before(std::string_view line, std::string_view what) {
  const size_t end = line.find(what);
  if (end == std::string_view::npos) return 0;
  size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int64_t value = 0;
  std::from_chars(line.data() + begin, line.data() + end, value);
  return value;
}

std::string_view trimmed(std::string_view line) {
  // "ptxas info    : " and "ptxas         .     " stand before what is said.
  if (line.starts_with("ptxas")) {
    const size_t mark = line.find_first_of(":.");
    if (mark != std::string_view::npos) line.remove_prefix(mark + 1);
  }
  while (line.starts_with(' ')) line.remove_prefix(1);
  return line;
}

}  // namespace

std::optional<KernelResources> read_resources(std::string_view log, std::string_view name) {
  const std::string entry = fmt::format("Compiling entry function '{}'", name);
  const std::string properties = fmt::format("Function properties for {}", name);
  KernelResources resources;
  bool inside = false, is_own_frame = false;
  for (const std::string_view line : lines_of(log)) {
    if (contains(line, "Compiling entry function")) inside = contains(line, entry);
    if (is_own_frame) resources.local_bytes = number_before(line, " bytes stack frame");
    is_own_frame = inside && line.ends_with(properties);
    if (!inside || !contains(line, ": Used ")) continue;
    resources.registers = static_cast<int>(number_before(line, " registers"));
    resources.barriers = static_cast<int>(number_before(line, " barriers"));
    resources.static_shared_bytes = number_before(line, " bytes smem");
    resources.constant_bytes = number_before(line, " bytes cmem[0]");
    return resources;
  }
  return std::nullopt;
}

std::string find_fault(std::string_view log) {
  std::string_view function;
  for (const std::string_view line : lines_of(log)) {
    if (contains(line, "Potential Performance Loss") || (contains(line, "setmaxnreg") && contains(line, "ignored")) ||
        (contains(line, "wgmma") && contains(line, "serialized"))) {
      return std::string(trimmed(line));
    }
    constexpr std::string_view kProperties = "Function properties for ";
    const size_t properties = line.find(kProperties);
    if (properties != std::string_view::npos) function = line.substr(properties + kProperties.size());
    if (number_before(line, " bytes stack frame") != 0 || number_before(line, " bytes spill stores") != 0 ||
        number_before(line, " bytes spill loads") != 0 || number_before(line, " bytes lmem") != 0) {
      return fmt::format("local memory in {}: {}", function, trimmed(line));
    }
  }
  return {};
}

std::string error_lines(std::string_view log) {
  constexpr int kMostLines = 10;
  std::string text;
  int count = 0;
  for (const std::string_view line : lines_of(log)) {
    const bool is_error = contains(line, "error") || contains(line, "fatal");
    if ((count == 0 && !is_error) || count == kMostLines || line.empty()) continue;
    text += count == 0 ? "" : "\n";
    text += line;
    ++count;
  }
  return text.empty() ? std::string(log) : text;
}

}  // namespace difuse::codegen
