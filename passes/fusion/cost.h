// What a fusion may hold, and what recomputing costs. Everything is counted in bytes moved: a value that crosses from
// one kernel to another is written once and read once by each reader; arithmetic inside a body is free next to that.
#pragma once

#include <cstdint>

namespace difuse::passes {

/// A body beyond this gains nothing more and only makes kernels that are slow to compile and to read.
inline constexpr int kMostBodyNodes = 256;
inline constexpr int kMostOperands = 64;
/// An epilogue lives in registers beside a contraction's accumulators.
inline constexpr int kMostEpilogueNodes = 32;
inline constexpr int kMostEpilogueTensors = 4;  ///< Operands as large as the result.
/// A row that is read again once it has been summed: 32 values for each thread of a warp.
inline constexpr int64_t kMostRowElements = 1024;
/// Arithmetic is free only while it is little: longer chains are saved, not recomputed.
inline constexpr int kMostRecomputedNodes = 32;
/// A step that keeps less for an image is not short of memory: a GPU's holds thousands of such images.
inline constexpr int64_t kLeastKeptBytes = int64_t{4} << 20;
/// Of a smaller tensor, bytes of each image, what is spared is not worth an order that keeps launches apart.
inline constexpr int64_t kLeastImageBytes = int64_t{64} << 10;
/// What a block reads before its loop begins, in runs of 16 bytes: eight for each thread, all of them in flight at
/// once.
inline constexpr int64_t kMostPreambleLoads = 1024;
/// Elements of a loop that one block of a kernel runs over, at least. Blocks of large images run over more, but a
/// preamble that is as long as they allow takes longer than the kernel that it spares (64x64x64 on an H200: 9 us
/// instead of 3).
inline constexpr int64_t kBlockElements = 2048;
/// From so many pixels on, an image has blocks of its own where its pixels are summed.
inline constexpr int64_t kLeastImagePixels = 48;

}  // namespace difuse::passes
