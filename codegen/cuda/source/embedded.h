// The device headers inside the program; CMake writes the definition (embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace difuse::codegen::cuda {

struct EmbeddedHeader {
  std::string_view name, text;
};

std::span<const EmbeddedHeader> embedded_headers();

}  // namespace difuse::codegen::cuda
