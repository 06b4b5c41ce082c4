// How models are compared with what PyTorch computed.
#pragma once

namespace difuse::models {

/// design.md's error of a backend in f32.
inline constexpr double kF32Tolerance = 1e-5;
inline constexpr int kThreads = 2;

}  // namespace difuse::models
