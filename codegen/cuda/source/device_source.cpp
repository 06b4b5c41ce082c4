#include "codegen/cuda/source/device_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "codegen/cuda/source/embedded.h"
#include "ir/error.h"

namespace difuse::codegen::cuda {
namespace {

class Concatenation {
 public:
  void add(std::string_view name) {
    if (!added_.insert(name).second) return;
    const auto headers = embedded_headers();
    const auto found = std::ranges::find(headers, name, &EmbeddedHeader::name);
    if (found == headers.end()) throw Error(fmt::format("there is no device header \"{}\"", name));
    std::string own;
    for (std::string_view rest = found->text; !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size() - 1);
      const std::string_view line = rest.substr(0, end + 1);
      rest.remove_prefix(end + 1);
      constexpr std::string_view kInclude = "#include \"";
      if (line.starts_with(kInclude)) {
        const std::string_view path = line.substr(kInclude.size(), line.rfind('"') - kInclude.size());
        add(path.substr(path.rfind('/') + 1));
      } else if (!line.starts_with("#pragma once")) {
        own += line;
      }
    }
    text_ += fmt::format("// -- {}\n{}// -- end of {}\n", name, own, name);
  }

  std::string take() { return std::move(text_); }

 private:
  std::set<std::string_view> added_;
  std::string text_;
};

}  // namespace

std::string device_source(std::span<const std::string_view> headers) {
  Concatenation all;
  for (const std::string_view name : headers) all.add(name);
  return all.take();
}

std::string device_source(std::initializer_list<std::string_view> headers) {
  return device_source(std::span(headers.begin(), headers.size()));
}

}  // namespace difuse::codegen::cuda
