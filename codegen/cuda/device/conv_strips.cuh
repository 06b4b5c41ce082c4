// Sums and statistics (moments.cuh) of an image's strips, from the tile that a consumer of conv_wgmma.cuh has in
// registers: a thread has two neighbouring columns of pixels, and four threads that follow each other have a strip's
// eight, or those of several images abreast. Sums run down each column, then over the columns as moments::tree has it.
#pragma once
#include "codegen/cuda/device/conv_wgmma.cuh"
#include "codegen/cuda/device/moments.cuh"

namespace conv {

/// The strips of a consumer's tile; `top` is a strip's first row in the tile.
template <class Consumer>
struct Strips {
  using Problem = typename Consumer::Problem;
  using Tile = typename Consumer::Tile;
  static constexpr int columns = moments::kColumns, rows = 16;  ///< Of a strip.
  static constexpr int across = (Problem::width + columns - 1) / columns;
  static constexpr int count = across * ((Problem::height + rows - 1) / rows);  ///< Of an image.
  static constexpr int height = Tile::rows < Problem::height ? Tile::rows : Problem::height;
  static constexpr int in_tile = (height + rows - 1) / rows;
  static_assert(Tile::rows % rows == 0 || Tile::rows >= Problem::height, "a tile is whole strips");

  __device__ __forceinline__ static bool is_inside(const Consumer& consumer, int lane) {
    return (Problem::height % Tile::rows == 0 || consumer.y(lane) < Problem::height) &&
           (Problem::width % columns == 0 || consumer.x(lane) < Problem::width);
  }
  __device__ __forceinline__ static int pixels(const Consumer& consumer, int top) {
    const int tall = Problem::height % rows == 0 ? rows : min(Problem::height - consumer.y(2 * top), rows);
    const int wide = Problem::width % columns == 0 ? columns : min(Problem::width - left(consumer), columns);
    return tall * wide;
  }
  /// What the columns of the strip sum to. Of images abreast each has fewer: adding no more zeros changes no bit.
  __device__ __forceinline__ static float sum(float first, float second) {
    float sum = first + second;
    if constexpr (Tile::width > 2) sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    if constexpr (Tile::width > 4) sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    return sum;
  }
  /// To [image, strip, channel], `images` of them.
  __device__ __forceinline__ static void store(const Consumer& consumer, int image, int half, int top, float value,
                                               float* to, int images) {
    const int n = consumer.image(image), y = consumer.y(2 * top), channel = consumer.channel(half);
    if (consumer.x(0) != left(consumer) || n >= images || y >= Problem::height || channel >= Problem::outputs) return;
    to[(n * count + y / rows * across + left(consumer) / columns) * Problem::outputs + channel] = value;
  }

 private:
  __device__ __forceinline__ static int left(const Consumer& consumer) { return consumer.x(0) / columns * columns; }
};

/// The sums of a value over the tile's strips, for one image and one of the thread's channels.
template <class Consumer>
class StripSums {
 public:
  __device__ __forceinline__ void add(const Consumer& consumer, int lane, float x) {
    if (lane / 2 >= S::height) return;
    columns_[lane / 2 / S::rows][lane % 2] += S::is_inside(consumer, lane) ? x : 0.0f;
  }
  __device__ __forceinline__ void store(const Consumer& consumer, int image, int half, float* to, int images) const {
#pragma unroll
    for (int strip = 0; strip < S::in_tile; ++strip) {
      const float sum = S::sum(columns_[strip][0], columns_[strip][1]);
      S::store(consumer, image, half, strip * S::rows, sum, to, images);
    }
  }

 private:
  using S = Strips<Consumer>;
  float columns_[S::in_tile][2] = {};
};

/// Mean and sum of squared deviations of each strip of the tile and each of its channels, of what `consumer.sum` holds.
template <class Consumer>
__device__ __forceinline__ void store_moments(Consumer& consumer, float* mean, float* m2, int images) {
  using S = Strips<Consumer>;
#pragma unroll
  for (int image = 0; image < Consumer::Tile::images; ++image) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int top = 0; top < S::height; top += S::rows) {
        const int end = top + S::rows < S::height ? top + S::rows : S::height;
        float columns[2] = {};
#pragma unroll
        for (int lane = 2 * top; lane < 2 * end; ++lane) {
          columns[lane % 2] += S::is_inside(consumer, lane) ? consumer.sum(image, half, lane) : 0.0f;
        }
        const float average = S::sum(columns[0], columns[1]) / static_cast<float>(S::pixels(consumer, top));
        columns[0] = columns[1] = 0.0f;
#pragma unroll
        for (int lane = 2 * top; lane < 2 * end; ++lane) {
          const float away = consumer.sum(image, half, lane) - average;
          columns[lane % 2] += S::is_inside(consumer, lane) ? away * away : 0.0f;
        }
        S::store(consumer, image, half, top, average, mean, images);
        S::store(consumer, image, half, top, S::sum(columns[0], columns[1]), m2, images);
      }
    }
  }
}

}  // namespace conv
