#pragma once

namespace difuse::runtime {

/// The stand-in for NVIDIA's driver (tests/support/fake_cuda).
inline constexpr const char* kFakeDriver = FAKE_CUDA_FOLDER "/libcuda.so.1";

}  // namespace difuse::runtime
