// What is computed of an image's pixels in shared memory before the tensor cores read them: tiles as the copy engine
// leaves them (ptx_sm90.cuh), pixels of 128 bytes, 64 channels.
#pragma once
#include "codegen/cuda/device/ptx_sm90.cuh"
#include "codegen/cuda/device/vector.cuh"

namespace prologue {

/// Another image like the one in shared memory, of so many channels, which is read where it lies.
template <int channels>
struct Beside {
  static constexpr bool exists = true;
  const bf16* image;

  /// From a pixel of all images, and a channel, on.
  __device__ __forceinline__ Beside from(int pixel, int channel) const {
    return {image + static_cast<long long>(pixel) * channels + channel};
  }
  __device__ __forceinline__ Run<unsigned, 4> load(int pixel) const {
    return *reinterpret_cast<const Run<unsigned, 4>*>(image + pixel * channels);
  }
};
/// There is none.
struct Alone {
  static constexpr bool exists = false;
  __device__ __forceinline__ Alone from(int, int) const { return {}; }
};

/// 128 threads: each has eight channels of every 16th pixel, whose chunks are exchanged alike.
struct Threads {
  static constexpr int step = 16, pixel_bytes = 128;
  /// Pixels: half as many of two images, whose parameters take more registers.
  template <class Other>
  static constexpr int at_once = Other::exists ? 2 : 4;

  /// This thread's eight of a pixel's 64 channels.
  __device__ __forceinline__ static int channel() { return static_cast<int>(threadIdx.x % 8u) * 8; }
  /// Its first pixel.
  __device__ __forceinline__ static int pixel() { return static_cast<int>(threadIdx.x % 128u / 8u); }
  /// Where it has channel() of the tile's pixel `pixel`.
  __device__ __forceinline__ static unsigned char* place(unsigned char* tile, int pixel) {
    return tile + pixel * pixel_bytes + ((threadIdx.x % 8u ^ pixel % 8u) << 4);
  }

  /// In place, of the pixel at `at` and every 16th after it: those of which `next(i, pixel)`, asked in their order, is
  /// true, `pixel` then being where `other` has it. `transformed(raw)`, or `transformed(raw, others)`.
  template <class Next, class Other, class Transformed>
  __device__ __forceinline__ static void transform(unsigned char* at, const Next& next, const Other& other,
                                                   const Transformed& transformed) {
    constexpr int count = at_once<Other>;
    Run<unsigned, 4> raw[count] = {}, others[count] = {}, made[count];
    bool is_inside[count];
#pragma unroll
    for (int i = 0; i < count; ++i) {
      int pixel = 0;
      is_inside[i] = next(i, pixel);
      if (is_inside[i]) {
        raw[i] = *reinterpret_cast<const Run<unsigned, 4>*>(at + i * step * pixel_bytes);
        if constexpr (Other::exists) others[i] = other.load(pixel);
      }
    }
    // Of all before the branches at their stores: special functions take long, and wait for one another side by side.
#pragma unroll
    for (int i = 0; i < count; ++i) {
      Run<float, 8> value;
      if constexpr (Other::exists) {
        value = transformed(widened(raw[i]), widened(others[i]));
      } else {
        value = transformed(widened(raw[i]));
      }
#pragma unroll
      for (int l = 0; l < 4; ++l) made[i][l] = pack_bf16(value[2 * l], value[2 * l + 1]);
      multiply_registers(made[i].element);
    }
#pragma unroll
    for (int i = 0; i < count; ++i) {
      if (is_inside[i]) *reinterpret_cast<Run<unsigned, 4>*>(at + i * step * pixel_bytes) = made[i];
    }
  }

 private:
  __device__ __forceinline__ static Run<float, 8> widened(const Run<unsigned, 4>& pairs) {
    Run<float, 8> elements;
#pragma unroll
    for (int l = 0; l < 4; ++l) {
      elements[2 * l] = __uint_as_float(pairs[l] << 16);
      elements[2 * l + 1] = __uint_as_float(pairs[l] & 0xffff0000u);
    }
    return elements;
  }
};

/// `rows` x `columns` pixels of an image of height x width.
template <int rows, int columns, int height, int width>
struct Window : Threads {
  static constexpr int pixels = rows * columns, image_pixels = height * width;
  static_assert(columns <= step);

  /// In place, from the tile's pixel `first` on, which is (y, x) of the image, whose first pixel `other` begins with.
  /// What lies outside the image the copy engine has made zero, and it stays so.
  template <class Other, class Transformed>
  __device__ __forceinline__ static void transform(unsigned char* tile, int first, int y, int x, const Other& other,
                                                   const Transformed& transformed) {
    constexpr int count = at_once<Other>;
    const int mine = Threads::pixel();
    unsigned char* at = place(tile, first + mine);
    int row = y + quotient<columns>(mine), column = x + remainder_of<columns>(mine);
#pragma unroll 1
    for (int begin = mine; begin < pixels; begin += count * step) {
      const auto next = [&](int i, int& pixel) {
        const bool is_inside = begin + i * step < pixels &&
                               static_cast<unsigned>(row) < static_cast<unsigned>(height) &&
                               static_cast<unsigned>(column) < static_cast<unsigned>(width);
        pixel = row * width + column;
        row += step / columns, column += step % columns;
        if (column >= x + columns) column -= columns, ++row;
        return is_inside;
      };
      Threads::transform(at, next, other, transformed);
      at += count * step * pixel_bytes;
    }
  }
};

/// Pixels that follow one another.
struct Stretch : Threads {
  /// In place, of the tile's pixels from `first` up to `end`; `other` begins with the tile's first.
  template <class Other, class Transformed>
  __device__ __forceinline__ static void transform(unsigned char* tile, int first, int end, const Other& other,
                                                   const Transformed& transformed) {
#pragma unroll 1
    for (int begin = first / step * step + Threads::pixel(); begin < end; begin += at_once<Other> * step) {
      const auto next = [&](int i, int& pixel) {
        pixel = begin + i * step;
        return pixel >= first && pixel < end;
      };
      Threads::transform(place(tile, begin), next, other, transformed);
    }
  }
};

}  // namespace prologue
