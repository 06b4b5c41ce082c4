// The transformer of wgrad_wgmma.cuh: it makes of each tile of x what the prologue makes of the image, in place, once
// its copy is there and before the consumers multiply.
//
// Three consumers and it have 128 registers a thread between them, all that there are: the producer is no warp besides,
// but one of its threads, which begins copies some tiles ahead of what all of them transform.
#pragma once
#include "codegen/cuda/device/prologue.cuh"
#include "codegen/cuda/device/wgrad_wgmma.cuh"

namespace wgrad {

/// A warpgroup. `image_pixels`: of an image, where all are one line.
template <class L, int image_pixels>
class Transformer {
 public:
  using Problem = typename L::Problem;
  using Tile = typename L::Tile;

  /// As Producer.
  template <class... Maps>
  __device__ __forceinline__ explicit Transformer(unsigned char* start, const Maps&... maps)
      : shared_{start}, producer_(start, maps...) {}

  /// `channels_at(image, channel)`: what eight channels from `channel` on have in common in an image, one of `images`.
  /// `transformed(channels, raw)`: of eight elements.
  template <class ChannelsAt, class Transformed>
  __device__ __forceinline__ void transform(const Units& units, int images, const ChannelsAt& channels_at,
                                            const Transformed& transformed) {
    const Origin origin = origin_of<L>(units.block);
    load(units, 0, kAhead);
#pragma unroll 1
    for (int i = 0; i < units.count; ++i) {
      load(units, i + kAhead, 1);
      transform(origin, units.tile + i, images, channels_at, transformed);
      fence_shared_for_engines();
      __syncwarp();
      if (threadIdx.x % 32u == 0) barrier_arrive(shared_.ready(place_.slot));
      place_.advance();
    }
  }

 private:
  /// Half of the ring is what consumers have yet to multiply, one tile is what is transformed, and the rest are copies
  /// on their way. A consumer gives a tile back when it has begun with the next one: that half is one tile at least.
  static constexpr int kBehind = Tile::slots / 2, kAhead = Tile::slots - 1 - kBehind;
  static constexpr int kBorder = Problem::filter - 1;
  using Window =
      prologue::Window<Tile::rows + Tile::tap_rows - 1, 8 + kBorder, Problem::height + kBorder - 2 * Problem::pad,
                       Problem::width + kBorder - 2 * Problem::pad>;
  static_assert(Problem::has_prologue && kBehind >= 1 && kAhead >= 1);

  /// The copies of so many tiles from number `first` on, as far as there are any.
  __device__ __forceinline__ void load(const Units& units, int first, int count) {
    const int rest = units.count - first;
    if (threadIdx.x == L::owners) producer_.load({units.block, units.tile + first, rest < count ? rest : count});
    __syncwarp();
  }
  __device__ __forceinline__ void wait() { barrier_wait(shared_.full(place_.slot), place_.parity); }

  template <class ChannelsAt, class Transformed>
  __device__ __forceinline__ void transform(const Origin& origin, int tile, int images, const ChannelsAt& channels_at,
                                            const Transformed& transformed) {
    bool has_waited = false;
    const auto transform_image = [&](int chunk, int image, const auto& apply) {
      const int channel = origin.input + chunk * 64 + prologue::Threads::channel();
      if (channel >= Problem::inputs) return;
      const auto channels = channels_at(image, channel, nullptr);
      if (!has_waited) wait();
      has_waited = true;
      apply(shared_.x(place_.slot) + chunk * L::halo_bytes,
            [&](const auto& raw) { return transformed(channels, raw); });
    };
    if constexpr (L::is_line) {
      const int begin = tile * L::pixels, last = min(begin + L::pixels, images * image_pixels) - 1;
#pragma unroll 1
      for (int image = quotient<image_pixels>(begin); image <= quotient<image_pixels>(last); ++image) {
        const int first = image * image_pixels - begin, end = min(first + image_pixels, last + 1 - begin);
#pragma unroll 1
        for (int chunk = 0; chunk < Tile::column_chunks; ++chunk) {
          transform_image(chunk, image, [&](unsigned char* x, const auto& made) {
            prologue::Stretch::transform(x, max(first, 0), end, made);
          });
        }
      }
    } else {
      const int line = quotient<L::tiles_x>(tile), first = quotient<L::tiles_y>(line) * Tile::images;
      const int at_x = remainder_of<L::tiles_x>(tile) * 8, at_y = remainder_of<L::tiles_y>(line) * Tile::rows;
#pragma unroll 1
      for (int i = 0; i < Tile::images && first + i < images; ++i) {
        transform_image(0, first + i, [&](unsigned char* x, const auto& made) {
          Window::transform(x, i * Window::pixels, at_y - Problem::pad + origin.tap_row, at_x - Problem::pad, made);
        });
      }
    }
    if (!has_waited) wait();
  }

  const Shared<L> shared_;
  Producer<L> producer_;
  RingPlace<Tile::slots> place_;
};

}  // namespace wgrad
