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
/// Elements of a loop that one block of a kernel runs over, at least. Half as many bytes as that reads and writes may
/// be in its preamble, or, of statistics of an image that is stored after all, twice as many: blocks of large images
/// run over more (32x32x128 in bf16 at 32 images: 8192 elements, all 512 blocks at once), and such a preamble is on its
/// way with the loop's first loads. On an H200 three of 64x64x64 (16 KB an image) and two of 32x32x128 change the 1.303
/// ms of a forward pass of adm-seed64 at 32 images by less than 2 us.
inline constexpr int64_t kBlockElements = 2048;
/// An operand that a contraction computes on the way is computed again for each column of its tiles: so many of the
/// result's channels, or twice or three times as many where that divides them (conv_wgmma.cuh). Beside three times as
/// many it takes twice as long.
inline constexpr int64_t kTileColumnChannels = 64;
constexpr int64_t transforms_of(int64_t channels) {
  const int64_t columns = (channels + kTileColumnChannels - 1) / kTileColumnChannels;
  return columns % 2 == 0 ? columns / 2 : columns % 3 == 0 ? columns / 3 * 2 : columns;
}
/// Of the operand's channels so many are transformed at once, there or not.
inline constexpr int64_t kChunkChannels = 64;
/// One processor's seconds for one element of it. Measured on an H200 (132 processors) with normalise + SiLU in shared
/// memory (conv_prologue.cuh), halo included, 32 images in bf16: a 3x3 convolution of 64x64x64 to 64 channels 17.4 ->
/// 24.0 us, of 64x64x128 33.5 -> 46.4 us, of 64x64x192 45.5 -> 64.7 us, of 32x32x128 to 128 (at once) 17.9 -> 21.5 us:
/// 0.76 to 0.86 ps for each element.
inline constexpr double kTransformSeconds = 0.8e-12 * 132;
/// An image of fewer pixels, four tiles, has too little for a processor to hide how long the first tile takes to be
/// transformed, and what finishes its statistics before that ...
inline constexpr int64_t kHidingPixels = 512;
/// ... which takes one processor so long for each image and transform. On the same H200, beyond the elements' own time,
/// where no two columns shared it: a 3x3 convolution of 16x16x192 to 192 channels 12.7 -> 23.4 us (7.0 us more, of 96
/// images and columns on 132 processors), of 8x8x256 to 256 10.5 -> 18.6 us (6.5 us, 128), a 1x1 one of 16x16x192 to
/// 576 10.1 -> 35.7 us (14.3 us, 288).
inline constexpr double kFirstTileSeconds = 0.05e-6 * 132;
/// Of a card's bandwidth, what loops over an image reach (H200: 4.05 of 4.8 TB/s at 32 images of 64x64x64).
inline constexpr double kCopyShare = 0.85;
/// A prologue that spares less than so many times its price is as likely to cost as to spare: that takes a measurement.
inline constexpr double kLeastGain = 1.1;
/// From so many pixels on, an image has blocks of its own where its pixels are summed.
inline constexpr int64_t kLeastImagePixels = 48;

}  // namespace difuse::passes
