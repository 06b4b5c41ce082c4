#include "models/run/console.h"

#include <algorithm>

namespace difuse::models {
namespace {

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\n' && c != '\r' && c != '\t') || byte == 0x7f;
}

}  // namespace

void write_console(std::FILE* to, std::string_view text) {
  std::string shown;
  if (std::ranges::any_of(text, is_control)) {
    for (const char c : text)
      shown += is_control(c) ? fmt::format("\\x{:02x}", static_cast<unsigned>(c)) : std::string(1, c);
    text = shown;
  }
  static_cast<void>(std::fwrite(text.data(), 1, text.size(), to));
}

}  // namespace difuse::models
