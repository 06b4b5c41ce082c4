// The device headers of codegen/cuda/device/, which CMake embeds into the program.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace difuse::codegen::cuda {

/// The text of the device headers "vector.cuh", ... and of those that they include, each once, before what includes it;
/// their #include and #pragma once lines are gone. Throws Error for a header that there is not.
std::string device_source(std::span<const std::string_view> headers);
std::string device_source(std::initializer_list<std::string_view> headers);

}  // namespace difuse::codegen::cuda
