// Pictures that move.
#pragma once

#include <filesystem>
#include <span>

#include "runtime/png.h"

namespace difuse::runtime {

/// Pixels on a side that the format allows at most.
inline constexpr int kLargestWebp = 16383;

/// Writes a lossless animated WebP, for ever repeated, through AtomicFile. Every frame is shown for `frame_ms`, the
/// last one for `last_ms`. Errors: no frames, frames of different sizes or too large ones, a path that cannot be
/// written.
void write_webp_animation(const std::filesystem::path& path, std::span<const Image> frames, int frame_ms, int last_ms);

}  // namespace difuse::runtime
