// What is computed of an image's pixels in shared memory before the tensor cores read them: tiles as the copy engine
// leaves them (ptx_sm90.cuh), pixels of 128 bytes, 64 channels.
#pragma once
#include "codegen/cuda/device/ptx_sm90.cuh"
#include "codegen/cuda/device/vector.cuh"

namespace prologue {

/// 128 threads: each has eight channels of every 16th pixel, whose chunks are exchanged alike.
struct Threads {
  static constexpr int step = 16, at_once = 4, pixel_bytes = 128;

  /// This thread's eight of a pixel's 64 channels.
  __device__ __forceinline__ static int channel() { return static_cast<int>(threadIdx.x % 8u) * 8; }
  /// Its first pixel.
  __device__ __forceinline__ static int pixel() { return static_cast<int>(threadIdx.x % 128u / 8u); }
  /// Where it has channel() of the tile's pixel `pixel`.
  __device__ __forceinline__ static unsigned char* place(unsigned char* tile, int pixel) {
    return tile + pixel * pixel_bytes + ((threadIdx.x % 8u ^ pixel % 8u) << 4);
  }

  /// In place, of the pixel at `at` and every 16th after it: those of which `next(i)`, asked in their order, is true.
  template <class Next, class Transformed>
  __device__ __forceinline__ static void transform(unsigned char* at, const Next& next,
                                                   const Transformed& transformed) {
    Run<unsigned, 4> raw[at_once] = {}, made[at_once];
    bool is_inside[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      is_inside[i] = next(i);
      if (is_inside[i]) raw[i] = *reinterpret_cast<const Run<unsigned, 4>*>(at + i * step * pixel_bytes);
    }
    // Of all before the branches at their stores: special functions take long, and wait for one another side by side.
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      Run<float, 8> elements;
#pragma unroll
      for (int l = 0; l < 4; ++l) {
        elements[2 * l] = __uint_as_float(raw[i][l] << 16);
        elements[2 * l + 1] = __uint_as_float(raw[i][l] & 0xffff0000u);
      }
      const Run<float, 8> value = transformed(elements);
#pragma unroll
      for (int l = 0; l < 4; ++l) made[i][l] = pack_bf16(value[2 * l], value[2 * l + 1]);
      multiply_registers(made[i].element);
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      if (is_inside[i]) *reinterpret_cast<Run<unsigned, 4>*>(at + i * step * pixel_bytes) = made[i];
    }
  }
};

/// `rows` x `columns` pixels of an image of height x width.
template <int rows, int columns, int height, int width>
struct Window : Threads {
  static constexpr int pixels = rows * columns;
  static_assert(columns <= step);

  /// In place, from the tile's pixel `first` on, which is (y, x) of the image. What lies outside the image the copy
  /// engine has made zero, and it stays so.
  template <class Transformed>
  __device__ __forceinline__ static void transform(unsigned char* tile, int first, int y, int x,
                                                   const Transformed& transformed) {
    const int mine = Threads::pixel();
    unsigned char* at = place(tile, first + mine);
    int row = y + quotient<columns>(mine), column = x + remainder_of<columns>(mine);
#pragma unroll 1
    for (int pixel = mine; pixel < pixels; pixel += at_once * step) {
      const auto next = [&](int i) {
        const bool is_inside = pixel + i * step < pixels &&
                               static_cast<unsigned>(row) < static_cast<unsigned>(height) &&
                               static_cast<unsigned>(column) < static_cast<unsigned>(width);
        row += step / columns, column += step % columns;
        if (column >= x + columns) column -= columns, ++row;
        return is_inside;
      };
      Threads::transform(at, next, transformed);
      at += at_once * step * pixel_bytes;
    }
  }
};

/// Pixels that follow one another.
struct Stretch : Threads {
  /// In place, of the tile's pixels from `first` up to `end`.
  template <class Transformed>
  __device__ __forceinline__ static void transform(unsigned char* tile, int first, int end,
                                                   const Transformed& transformed) {
#pragma unroll 1
    for (int pixel = first / step * step + Threads::pixel(); pixel < end; pixel += at_once * step) {
      const auto next = [&](int i) { return pixel + i * step >= first && pixel + i * step < end; };
      Threads::transform(place(tile, pixel), next, transformed);
    }
  }
};

}  // namespace prologue
